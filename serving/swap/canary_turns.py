"""Whose turn it is on a replica that no other one can be held against: canary and live version take windows of time."""

import math
import time
from collections.abc import Callable


class CanaryTurns:
    """Windows of `window_s` seconds, the canary's first; 0: a canary drafts all the time. For one thread."""

    def __init__(self, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s, self._clock = window_s, clock
        self._number: int | None = None
        self._began_s = 0.0

    def is_its_turn(self, number: int) -> bool:
        """Whether the canary `number` drafts now; its first window begins when it is asked about first."""
        if number != self._number:
            self._number, self._began_s = number, self._clock()
        return not self._window_s or self._passed() % 2 < 1

    def left_s(self) -> float:
        """Seconds until the turn changes; infinite while nobody takes turns."""
        if not self._window_s or self._number is None:
            return math.inf
        return (1.0 - self._passed() % 1.0) * self._window_s

    def over(self) -> None:
        """No canary is out."""
        self._number = None

    def _passed(self) -> float:
        return (self._clock() - self._began_s) / self._window_s
