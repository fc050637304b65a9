"""How often a wrong token may be tried."""

import threading
import time
from collections import deque
from collections.abc import Callable

#: Wrong tokens in WINDOW_S before every further act is refused unheard.
MAX_WRONG = 5
WINDOW_S = 60.0


class Attempts:
    """Counts acts that were not known to have the right token; threads may share it. For the whole page, not by client.

    An attempt counts from when it begins, so that many at once are not more than one after the other.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: deque[float] = deque()
        self._lock = threading.Lock()

    def begin(self) -> float | None:
        """Count one attempt and return its time; None, and nothing is counted, when there were too many."""
        with self._lock:
            now = self._clock()
            while self._begun and now - self._begun[0] >= WINDOW_S:
                self._begun.popleft()
            if len(self._begun) >= MAX_WRONG:
                return None
            self._begun.append(now)
            return now

    def forgive(self, begun: float) -> None:
        """Count one attempt less: its token was right, or was not looked at."""
        with self._lock:
            if begun in self._begun:
                self._begun.remove(begun)
