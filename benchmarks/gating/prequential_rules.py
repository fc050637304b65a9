"""Delivery rules that judge on traces before they are learnt: policies/prequential.py and line_delivery.py decide."""

from collections.abc import Sequence
from dataclasses import replace

from ...policies.line_delivery import DeliveryRules, Ground, LineDelivery
from ...policies.paired import Paired
from ...policies.prequential import LineFinding, PrequentialRules, PrequentialTest, is_ruined
from .view import View


class Snapshot:
    """The candidate of one round is judged on the next chunk as it is, and goes live itself.

    The evidence begins at the last promotion, so it is of the candidates since then together.
    """

    def __init__(self, rules: PrequentialRules) -> None:
        self._rules = rules
        self._test = PrequentialTest(rules)

    def decide(self, seen: View) -> int:
        """As Rule."""
        challenger = seen.chunk * seen.matrix.blocks_per_round
        if challenger == seen.live:
            return seen.live
        self._test.observe(paired(seen, seen.in_chunk(seen.chunk), challenger, seen.live))
        if self._test.verdict().finding is not LineFinding.GAINS:
            return seen.live
        self._test = PrequentialTest(self._rules)
        return challenger


class Line:
    """The line is judged, block by block before it learns them; what goes live is what it has become."""

    def __init__(self, rules: PrequentialRules, later_error: float | None = None) -> None:
        """`later_error` is that of every promotion after the first; None: the same."""
        self._later = rules if later_error is None else replace(rules, error=later_error)
        self._rules = rules
        self._test = PrequentialTest(rules)

    def decide(self, seen: View) -> int:
        """As Rule."""
        for version in seen.blocks:
            if version != seen.live:  # else the line is the live version itself: nothing to compare
                self._test.observe(paired(seen, seen.in_block(version), version, seen.live))
        gains = self._test.verdict().finding is LineFinding.GAINS
        if not gains or fails_held_out(seen, seen.live, self._rules):
            return seen.live
        self._test = PrequentialTest(self._later)
        return seen.newest


class TrustedLine:
    """Proven once, the line is trusted for some rounds: policies/line_delivery.py."""

    def __init__(self, rules: DeliveryRules, reference: int = 0) -> None:
        """`reference` serves when the line begins."""
        self._rules = rules
        self._delivery = LineDelivery(rules, reference)
        self.ground = Ground.NOTHING_YET  # of the last decision

    def decide(self, seen: View) -> int:
        """As Rule."""
        reference = self._delivery.reference
        for version in seen.blocks:
            if version != reference:
                block = paired(seen, seen.in_block(version), version, reference)
                self._delivery.observe(block, is_live=version == seen.live)
        is_ruined_now = fails_held_out(seen, seen.live, self._rules.test)
        decided = self._delivery.decide(seen.newest, seen.live, is_ruined=is_ruined_now)
        self.ground = decided.ground
        return decided.version


def fails_held_out(seen: View, reference: int, rules: PrequentialRules) -> bool:
    """Whether the newest draft is shown to be ruined on what this claim held out."""
    claimed = set(seen.in_chunk(seen.chunk))
    held_out = [request for request in seen.held_out() if request in claimed]
    return is_ruined(paired(seen, held_out, seen.newest, reference), rules)


def paired(seen: View, requests: Sequence[int], version: int, reference: int) -> list[Paired]:
    """The requests as replayed with a version and with the reference."""
    return [
        Paired(seen.tenant(request), seen.tally(version, request), seen.tally(reference, request))
        for request in requests
    ]
