"""Keeps a fault of capture away from served tokens: guarded hook bodies and a breaker that opens for good."""

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger(__name__)
P = ParamSpec("P")

#: Faults after which capture turns itself off; one may be a passing oddity, three are a bug.
MAX_FAULTS = 3


class Breaker:
    """Open means off. It opens by `open(reason)` or after MAX_FAULTS guarded faults, and never closes again."""

    def __init__(self) -> None:
        self.faults = 0
        self.reason = ""  # why it is open; empty while it is closed

    @property
    def is_open(self) -> bool:
        """Whether capture is off for good."""
        return bool(self.reason)

    def open(self, reason: str) -> None:
        """Turn capture off and remember why; the first reason stays."""
        if not self.reason:
            self.reason = reason
            log.error("paceline: capture is off: %s", reason)

    def guard(self, body: Callable[P, None]) -> Callable[P, None]:
        """Wrap a hook body: skipped while open, never raises, returns None (which changes no result)."""

        @functools.wraps(body)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            if self.reason:
                return
            try:
                body(*args, **kwargs)
            except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
                self._count(body.__name__, fault)

        return guarded

    def _count(self, where: str, fault: Exception) -> None:
        self.faults += 1
        log.warning("paceline: fault %d in %s", self.faults, where, exc_info=fault)
        if self.faults >= MAX_FAULTS:
            self.open(f"{self.faults} faults, last in {where}: {type(fault).__name__}: {fault}")
