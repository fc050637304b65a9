"""Which version serves next, as the line of drafts in training proves itself, or fails to.

A line must prove once that it gains on the reference, the version that serves (prequential.py: odds of 20 to 1, valid
at every look). Then it is trusted for some rounds: its newest draft goes live at the end of each, for a line that gains
gains most from the newest traces, and to ask each of its small steps for a proof of its own would serve an old draft
most of the time. Meanwhile it goes on being compared with the reference. A new proof makes the newest draft the
reference and renews the trust; harm ends it, and the reference serves again; without either it runs out, and what
serves then is the reference that the line must gain on next.

So an equal line goes live at all with a chance of at most `error`, over a whole stream; a line on a plateau makes a few
swaps for nothing before it is trusted no more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .prequential import LineFinding, LineVerdict, Paired, PrequentialRules, PrequentialTest


class Ground(StrEnum):
    """Why a version serves next."""

    PROOF = "proof"  # the line was shown to gain: its newest draft
    TRUST = "trust"  # it was shown to gain a few rounds ago: its newest draft
    NOTHING_YET = "nothing_yet"  # the version that has served
    RUINED = "ruined"  # the same; the newest draft fails the requests that were held out
    HARM = "harm"  # the line was shown to harm: the reference


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was decided, and what it was decided on."""

    version: int  # serves next
    ground: Ground
    reason: str  # one sentence with figures, for people
    verdict: LineVerdict


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """The numbers of the decision. ValueError when one is out of its range."""

    test: PrequentialRules = field(default_factory=PrequentialRules)
    trusted_rounds: int = 4  # after a proof, that round not counted

    def __post_init__(self) -> None:
        if self.trusted_rounds < 0:
            raise ValueError(f"trusted_rounds: got {self.trusted_rounds}, expected at least 0")


class LineDelivery:
    """Decides round by round. Deterministic: the same calls give the same decisions."""

    def __init__(self, rules: DeliveryRules, reference: int) -> None:
        """`reference` serves when the line begins."""
        self._rules = rules
        self.reference = reference  # the version to replay beside the line
        self.serves = reference  # the version that was last decided to serve
        self._trusted_rounds = 0
        self._test = PrequentialTest(rules.test)

    def observe(self, block: Sequence[Paired]) -> None:
        """Add one block of requests, replayed with the line as it was before it learnt them and with `reference`."""
        self._test.observe(block)

    def decide(self, newest: int, live: int, *, is_ruined: bool) -> Delivery:
        """End a round that has trained version `newest` while `live` served; changes `serves`, perhaps `reference`.

        `is_ruined`: whether the newest draft fails the held-out requests of this round; see prequential.is_ruined.
        """
        decided = self._decided(newest, live, is_ruined=is_ruined)
        self.serves = decided.version
        return decided

    def _decided(self, newest: int, live: int, *, is_ruined: bool) -> Delivery:
        verdict = self._test.verdict()
        if verdict.finding is LineFinding.HARMS:
            return self._end_trust(verdict)
        if is_ruined:
            return self._keep(live, Ground.RUINED, "the newest draft fails the requests that were held out", verdict)
        if verdict.finding is LineFinding.GAINS:
            self._compare_with(newest)
            self._trusted_rounds = self._rules.trusted_rounds
            return Delivery(newest, Ground.PROOF, verdict.reason, verdict)
        if self._trusted_rounds:
            why = f"the line is trusted for {self._trusted_rounds} rounds; {verdict.reason}"
            return self._keep(newest, Ground.TRUST, why, verdict)
        return Delivery(live, Ground.NOTHING_YET, verdict.reason, verdict)

    def _end_trust(self, verdict: LineVerdict) -> Delivery:
        self._trusted_rounds = 0
        return Delivery(self.reference, Ground.HARM, verdict.reason, verdict)

    def _keep(self, version: int, ground: Ground, why: str, verdict: LineVerdict) -> Delivery:
        """Spend a round of trust, if there is any; with the last one, what serves becomes the reference."""
        if self._trusted_rounds:
            self._trusted_rounds -= 1
            if not self._trusted_rounds:
                self._compare_with(version)
        return Delivery(version, ground, why, verdict)

    def _compare_with(self, version: int) -> None:
        if version != self.reference:
            self.reference, self._test = version, PrequentialTest(self._rules.test)

    def state(self) -> dict[str, object]:
        """What continuing needs, as JSON values; a restored object decides as this one would."""
        trust = {"reference": self.reference, "serves": self.serves, "trusted_rounds": self._trusted_rounds}
        return {**trust, "test": self._test.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; an empty one changes nothing."""
        self.reference = int(state.get("reference", self.reference))
        self.serves = int(state.get("serves", self.serves))
        self._trusted_rounds = int(state.get("trusted_rounds", self._trusted_rounds))
        self._test = PrequentialTest(self._rules.test)
        self._test.restore(state.get("test", {}))
