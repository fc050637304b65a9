"""Verify rounds as SGLang itself counts them, beside capture's own count: a hook that no longer fires is seen here."""

from collections.abc import Callable, Iterable
from typing import Any

#: More than run at a time: what was seen longer ago is forgotten.
MAX_SEEN = 4096


class EngineRounds:
    """Adds up what running requests say of themselves; for one thread, at any pace: rounds of requests that begin and
    end between two looks are missed, so the sum is a lower bound.
    """

    def __init__(self, is_captured: Callable[[Any], bool]) -> None:
        """`is_captured` tells whether a request is to be captured."""
        self._is_captured = is_captured
        self._seen: dict[str, int] = {}  # request -> its rounds at the last look that saw it
        self.total = 0

    def look(self, reqs: Iterable[Any]) -> int:
        """Take SGLang's running requests, each with `rid` and `spec_verify_ct`, and return the sum so far."""
        now = {req.rid: int(req.spec_verify_ct) for req in reqs if self._is_captured(req)}
        self.total += sum(max(rounds - self._seen.get(rid, 0), 0) for rid, rounds in now.items())
        # Retracted requests come back with all their rounds, so those that do not run are remembered for a while.
        self._seen = {rid: rounds for rid, rounds in self._seen.items() if rid not in now} | now
        self._seen = dict(list(self._seen.items())[-MAX_SEEN:])
        return self.total
