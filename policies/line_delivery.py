"""Which version serves next, as the line of drafts in training proves itself, or fails to.

A line must prove once that it gains on the reference, the version that serves (prequential.py: odds of 10 to 1, valid
at every look). Then it is trusted for some rounds: its newest draft goes live at the end of each, for a line that gains
gains most from the newest traces, and to ask each of its small steps for a proof of its own would serve an old draft
most of the time. Meanwhile it goes on being compared. What the proof has brought live becomes the new reference once it
has served a round and nothing speaks against it: what was judged is the line some traces earlier, and the last ones may
have spoilt it. A new proof renews the trust; without one it runs out, the sooner the more requests have judged. Harm
ends it at once; if what serves has itself begun to lose against the reference, the last version that served a round
without suspicion serves again; else only what came later does harm. What serves when trust has ended is the reference
that the line must gain on next.

So an equal line goes live at all with a chance of at most `error`, over a whole stream; a line on a plateau makes a few
swaps for nothing before it is trusted no more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..buffer.board.reason import Reason, ReasonCode, because
from .paired import Paired
from .prequential import LineFinding, LineVerdict, PrequentialRules, PrequentialTest


class Ground(StrEnum):
    """Why a version serves next."""

    PROOF = "proof"  # the line was shown to gain: its newest draft
    TRUST = "trust"  # it was shown to gain a few rounds ago: its newest draft
    NOTHING_YET = "nothing_yet"  # the version that has served
    RUINED = "ruined"  # the same, since the newest draft fails the requests that were held out
    HARM = "harm"  # the line was shown to harm: what has served or, where that loses too, the last one unsuspected


@dataclass(frozen=True, slots=True)
class Delivery:
    """What was decided, and what it was decided on."""

    version: int  # serves next
    ground: Ground
    reason: Reason
    verdict: LineVerdict


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """The numbers of the decision. ValueError when one is out of its range."""

    test: PrequentialRules = field(default_factory=PrequentialRules)
    trusted_rounds: int = 4  # after a proof, that round not counted
    full_round: int = 30  # requests; a round in which fewer judged spends less of the trust, in proportion

    def __post_init__(self) -> None:
        if self.trusted_rounds < 0 or self.full_round < 1:
            raise ValueError(
                f"trusted_rounds: got {self.trusted_rounds}, expected at least 0; "
                f"full_round: got {self.full_round}, expected at least 1"
            )


#: One part in so many of a full round is spent at least, so that trust runs out where hardly anything can be judged.
_LEAST_PART = 4


class LineDelivery:
    """Decides round by round. Deterministic: the same calls give the same decisions."""

    def __init__(self, rules: DeliveryRules, reference: int) -> None:
        """`reference` serves when the line begins."""
        self._rules = rules
        self._trust = 0  # left, in requests: a full round has rules.full_round of them
        self._judged = 0  # requests of this round
        self._is_proven = False  # against the present reference, which waits for the proven draft to have served
        self._unsuspected = reference  # the last version that served a whole round without suspicion
        self.reference = reference  # the version to replay beside the line
        self.serves = reference  # the version that was last decided to serve
        self._line = self._live = PrequentialTest(rules.test)
        self._compare_with(reference)

    def observe(self, block: Sequence[Paired], *, is_live: bool) -> None:
        """Add one block of requests, replayed with the line as it was before it learnt them and with `reference`.

        `is_live`: whether the line was then the very draft that serves.
        """
        self._judged += len(block)
        self._line.observe(block)
        if is_live:
            self._live.observe(block)

    def decide(self, newest: int, live: int, *, is_ruined: bool) -> Delivery:
        """End a round that has trained version `newest` while `live` served; changes `serves`, perhaps `reference`.

        `is_ruined`: whether the newest draft fails the held-out requests of this round; see prequential.is_ruined.
        """
        decided = self._decided(newest, live, is_ruined=is_ruined)
        self.serves = decided.version
        if decided.version != live:
            self._live = PrequentialTest(self._rules.test)
        if decided.ground in {Ground.TRUST, Ground.RUINED}:
            self._spend_trust(decided.version)
        self._judged = 0
        return decided

    def _decided(self, newest: int, live: int, *, is_ruined: bool) -> Delivery:
        verdict = self._line.verdict()
        if not verdict.is_suspected:
            self._unsuspected = live
            if self._is_proven:
                self._compare_with(live)
                verdict = self._line.verdict()
        if verdict.finding is LineFinding.HARMS:
            return self._end_trust(live, verdict)
        if is_ruined:
            return Delivery(live, Ground.RUINED, because(ReasonCode.RUINED), verdict)
        if verdict.finding is LineFinding.GAINS and not self._is_proven:
            self._is_proven = True
            self._trust = self._rules.trusted_rounds * self._rules.full_round
            return Delivery(newest, Ground.PROOF, because(ReasonCode.PROVEN, **verdict.figures), verdict)
        if self._trust:
            left = self._trust / self._rules.full_round
            return Delivery(newest, Ground.TRUST, because(ReasonCode.TRUSTED, trust=left, **verdict.figures), verdict)
        code = ReasonCode.MAY_HARM if verdict.is_suspected else ReasonCode.NOT_PROVEN
        return Delivery(live, Ground.NOTHING_YET, because(code, **verdict.figures), verdict)

    def _end_trust(self, live: int, verdict: LineVerdict) -> Delivery:
        self._trust = 0
        served = self._live.verdict()
        version = self._unsuspected if served.requests and served.harm_odds > 1.0 else live
        self._line.forget_gains()  # beside harm they are no proof
        self._is_proven = False
        if version != self.reference:
            self._compare_with(version)
        return Delivery(version, Ground.HARM, because(ReasonCode.HARMS, **verdict.figures), verdict)

    def _spend_trust(self, version: int) -> None:
        """A round less, or a part of one; after the last one, what serves becomes the reference."""
        full = self._rules.full_round
        spent = min(max(self._judged, full // _LEAST_PART, 1), full)
        if 0 < self._trust <= spent and version != self.reference:
            self._compare_with(version)
        self._trust = max(self._trust - spent, 0)

    def _compare_with(self, version: int) -> None:
        self.reference = version
        self._is_proven = False
        self._line = PrequentialTest(self._rules.test)
        self._live = PrequentialTest(self._rules.test)

    def state(self) -> dict[str, object]:
        """What continuing needs, as JSON values; a restored object decides as this one would."""
        return {
            "reference": self.reference,
            "serves": self.serves,
            "unsuspected": self._unsuspected,
            "trust": self._trust,
            "judged": self._judged,
            "is_proven": self._is_proven,
            "line": self._line.state(),
            "live": self._live.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; an empty one changes nothing."""
        if not state:
            return
        self._compare_with(int(state["reference"]))
        self.serves = int(state["serves"])
        self._unsuspected = int(state["unsuspected"])
        self._trust = int(state["trust"])
        self._judged = int(state["judged"])
        self._is_proven = bool(state["is_proven"])
        self._line.restore(state["line"])
        self._live.restore(state["live"])
