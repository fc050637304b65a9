"""How long decode steps take, measured outside the engine: from one verified step to the next."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

#: Steps launched and not yet verified: SGLang's overlap scheduling launches one before it has read the last.
MAX_IN_FLIGHT = 4


class Verified(NamedTuple):
    """One decode step that has ended."""

    steps: int  # drafts it took
    cost_ms: float | None  # None: something else ran in between, or nothing before it


class _Launched(NamedTuple):
    batch_size: int
    steps: int
    follows_decode: bool  # whether the forward before it was a decode step too


class Meter(Protocol):
    """What pacing needs of a clock: StepMeter, or SharedMeter where another one drives it."""

    def launch(self, batch_size: int, steps: int) -> None:
        """A decode step begins."""
        ...

    def interrupt(self) -> None:
        """Something other than a decode step begins."""
        ...

    def verify(self, batch_size: int) -> Verified | None:
        """A decode step has ended; None when it is not the one launched first."""
        ...

    @property
    def unmatched(self) -> int:
        """Verifications without a launch."""
        ...


class StepMeter:
    """Pairs launches with verifications, oldest first. For one thread.

    The cost of a step is the time since the step before was verified. So it includes what the scheduler does between
    two forwards, and with overlap scheduling it is what a step adds and not how long it waited. A step after a prefill
    has no cost: what ran in between would be counted as its own.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._launched: deque[_Launched] = deque()
        self._follows_decode = False
        self.verified_s = 0.0  # by its clock, when a step ended last
        self.unmatched = 0  # verifications without a launch

    def launch(self, batch_size: int, steps: int) -> None:
        """A decode step begins."""
        self._launched.append(_Launched(batch_size, steps, self._follows_decode))
        self._follows_decode = True
        if len(self._launched) > MAX_IN_FLIGHT:
            self._launched.popleft()

    @property
    def in_flight(self) -> int:
        """Steps launched and not verified."""
        return len(self._launched)

    def interrupt(self) -> None:
        """Something other than a decode step begins."""
        self._follows_decode = False

    def discount(self) -> None:
        """The step launched last also does something that is no part of a decode step: it has no cost."""
        if self._launched:
            self._launched.append(self._launched.pop()._replace(follows_decode=False))

    def verify(self, batch_size: int) -> Verified | None:
        """A decode step has ended; None when it is not the one launched first."""
        now_s = self._clock()
        since_ms = 1e3 * (now_s - self.verified_s)
        self.verified_s = now_s
        if not self._launched or self._launched[0].batch_size != batch_size:
            self._launched.clear()
            self.unmatched += 1
            return None
        launched = self._launched.popleft()
        return Verified(launched.steps, since_ms if launched.follows_decode else None)
