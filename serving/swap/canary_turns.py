"""Alternates canary and live version in time, on a replica without another one to compare with."""

import math
import time
from collections.abc import Callable


class CanaryTurns:
    """Turns of `turn_s` seconds, the canary's first; 0: a canary drafts all the time. For one thread."""

    def __init__(self, turn_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._turn_s, self._clock = turn_s, clock
        self._number: int | None = None
        self._began_s = 0.0

    def is_its_turn(self, number: int) -> bool:
        """Whether the canary `number` drafts now; its first turn begins with the first call for it."""
        if number != self._number:
            self._number, self._began_s = number, self._clock()
        return not self._turn_s or self._passed() % 2 < 1

    def left_s(self) -> float:
        """Seconds until the turn changes; infinite while there are no turns."""
        if not self._turn_s or self._number is None:
            return math.inf
        return (1.0 - self._passed() % 1.0) * self._turn_s

    def end(self) -> None:
        """There is no canary any more."""
        self._number = None

    def _passed(self) -> float:
        return (self._clock() - self._began_s) / self._turn_s
