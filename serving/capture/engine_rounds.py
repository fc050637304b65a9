"""Verify rounds as SGLang itself counts them: they show when a capture hook stops firing."""

from collections.abc import Callable, Iterable
from typing import Any

#: More than run at a time; the oldest are forgotten.
MAX_SEEN = 4096


class EngineRounds:
    """Adds up the rounds that SGLang counts in running requests; one thread at a time, at any pace.

    Rounds of requests that begin and end between two looks are missed, so the sum is a lower bound.
    """

    def __init__(self, is_captured: Callable[[Any], bool]) -> None:
        """`is_captured`: whether a request is to be captured."""
        self._is_captured = is_captured
        self._seen: dict[str, int] = {}  # request -> its rounds at the last look that saw it
        self.total = 0

    def look(self, reqs: Iterable[Any]) -> int:
        """Take SGLang's running requests, each with `rid` and `spec_verify_ct`, and return the sum so far."""
        now = {req.rid: int(req.spec_verify_ct) for req in reqs if self._is_captured(req)}
        self.total += sum(max(rounds - self._seen.get(rid, 0), 0) for rid, rounds in now.items())
        # Retracted requests come back with all their rounds, so requests that do not run are remembered for a while.
        self._seen = {rid: rounds for rid, rounds in self._seen.items() if rid not in now} | now
        self._seen = dict(list(self._seen.items())[-MAX_SEEN:])
        return self.total
