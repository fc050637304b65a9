"""How often a wrong token may be tried, and how many acts were not heard since it was tried too often."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

from ...buffer.errors import BufferUnavailable

_log = logging.getLogger(__name__)

#: Wrong tokens in WINDOW_S before every further act is refused unheard.
MAX_WRONG = 5
WINDOW_S = 60.0
#: Speculators that unheard acts are counted for; whoever sends orders chooses these names.
_MAX_NAMES = 16


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


def in_background(seconds: float, act: Callable[[], None]) -> None:
    """Call `act` in so many seconds, in a thread of its own that keeps no process alive."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


class Unheard:
    """Counts acts that were refused unheard, by the speculator that they named; threads may share it.

    Those of a minute are told together: one by one they would push everything else off the record.
    """

    def __init__(
        self,
        tell: Callable[[str, int], None],
        later: Callable[[float, Callable[[], None]], None] = in_background,
    ) -> None:
        """`tell` puts a speculator's count on record; it may block, and raise BufferUnavailable."""
        self._tell = tell
        self._later = later
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, speculator: str) -> None:
        """Count one, and have it told within WINDOW_S. Beyond _MAX_NAMES names a minute, new ones are not kept."""
        with self._lock:
            is_first = not self._counts
            if speculator in self._counts or len(self._counts) < _MAX_NAMES:
                self._counts[speculator] += 1
        if is_first:
            self._later(WINDOW_S, self._tell_all)

    def _tell_all(self) -> None:
        with self._lock:
            counts = self._counts
            self._counts = Counter()
        for speculator, acts in counts.items():
            try:
                self._tell(speculator, acts)
            except BufferUnavailable as fault:
                _log.warning("paceline window: %d acts not heard, and not on record: %s", acts, fault)
