"""Keeps a fault of capture away from served tokens: guarded hook bodies and a breaker that opens for good.

The scheduler process has one breaker and the courier process another, which opens with the first.
"""

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

#: Faults within FAULT_WINDOW_S after which capture turns itself off: a single one may pass, three in a row are a bug.
#: Faults far apart are counted and forgiven.
MAX_FAULTS = 3
FAULT_WINDOW_S = 60.0


class Breaker:
    """Open means off. It opens by `open(reason)` or after MAX_FAULTS faults in a row, and never closes again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, what: str = "capture") -> None:
        """`what` it turns off, for the log."""
        self._what = what
        self.faults = 0  # since the process started
        self._recent: deque[float] = deque(maxlen=MAX_FAULTS)
        self._clock = clock
        self.reason = ""  # why it is open; empty while it is closed

    @property
    def is_open(self) -> bool:
        """Whether capture is off for good."""
        return bool(self.reason)

    def open(self, reason: str) -> None:
        """Turn capture off and remember why; the first reason stays."""
        if not self.reason:
            self.reason = reason
            log.error("paceline: %s is off: %s", self._what, reason)

    def guard(self, body: Callable[P, None]) -> Callable[P, None]:
        """Wrap a hook body: skipped while open, never raises, returns None (which leaves the result as it is)."""

        @functools.wraps(body)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            if self.reason:
                return
            try:
                body(*args, **kwargs)
            except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
                self.note(body.__name__, fault)

        return guarded

    def note(self, where: str, fault: Exception) -> None:
        """Count and log a fault met in `where`; too many in a row open the breaker."""
        self.faults += 1
        log.warning("paceline: fault %d in %s", self.faults, where, exc_info=fault)
        self._recent.append(self._clock())
        if len(self._recent) == MAX_FAULTS and self._recent[-1] - self._recent[0] <= FAULT_WINDOW_S:
            self.open(f"{MAX_FAULTS} faults in a row, last in {where}: {type(fault).__name__}: {fault}")


@contextmanager
def losing_on_fault(lose: Callable[[T], None], what: T) -> Iterator[None]:
    """Call `lose` if the body raises: without their forward, requests would go uncounted."""
    try:
        yield
    except Exception:  # whatever it is, the requests are lost; the guard around the hook body ends it
        lose(what)
        raise
