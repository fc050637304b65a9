"""Delivery rules that judge on traces before they are learnt: policies/prequential.py decides."""

from collections.abc import Sequence

from ...policies.prequential import LineDecision, Paired, PrequentialRules, PrequentialTest, is_ruined
from .view import View


class Snapshot:
    """The candidate of one round is judged on the next chunks as it is, and goes live itself."""

    def __init__(self, rules: PrequentialRules) -> None:
        self._test = PrequentialTest(rules)

    def decide(self, seen: View) -> int:
        """As Rule. Tests the candidate of the round before, on evidence that began at the last promotion."""
        challenger = seen.chunk * seen.matrix.blocks_per_round
        if challenger == seen.live:
            return seen.live
        self._test.observe(paired(seen, challenger, seen.in_chunk(seen.chunk)))
        if self._test.verdict().decision is not LineDecision.PROMOTE:
            return seen.live
        self._test.record_promotion()
        return challenger


class Line:
    """The line is judged, block by block before it learns them; what goes live is what it has become."""

    def __init__(self, rules: PrequentialRules, *, checks_newest: bool = True) -> None:
        self._rules = rules
        self._test = PrequentialTest(rules)
        self._checks_newest = checks_newest

    def decide(self, seen: View) -> int:
        """As Rule."""
        for block in seen.blocks:
            if block != seen.live:  # else the line is the live version: nothing to compare
                self._test.observe(paired(seen, block, seen.in_block(block)))
        if self._test.verdict().decision is not LineDecision.PROMOTE or not self._is_sane(seen):
            return seen.live
        self._test.record_promotion()
        return seen.newest

    def _is_sane(self, seen: View) -> bool:
        """Whether the newest draft is not shown to be worse on what this claim held out."""
        if not self._checks_newest:
            return True
        claimed = set(seen.in_chunk(seen.chunk))
        held_out = [request for request in seen.held_out() if request in claimed]
        return not is_ruined(paired(seen, seen.newest, held_out), self._rules)


def paired(seen: View, version: int, requests: Sequence[int]) -> list[Paired]:
    """The requests as replayed with a version and with the live one."""
    return [
        Paired(seen.tenant(request), seen.tally(version, request), seen.tally(seen.live, request))
        for request in requests
    ]
