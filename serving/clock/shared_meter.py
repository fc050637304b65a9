"""The meter as pacing sees it where the step clock drives it: one clock for both."""

from .step_clock import StepClock
from .step_meter import Verified


class SharedMeter:
    """A Meter over `clock`, whose hooks see every launch and every result before pacing is told of them."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def launch(self, batch_size: int, steps: int) -> None:
        """The clock sees it itself, once SGLang has switched to these steps."""

    def interrupt(self) -> None:
        """Something other than a decode step begins."""
        self._clock.meter.interrupt()

    def verify(self, batch_size: int) -> Verified | None:
        """The step that the clock saw end just now. RuntimeError once the clock has stopped: no cost would be known."""
        del batch_size  # the clock has compared it with what was launched
        if self._clock.fault:
            raise RuntimeError(f"the step clock has stopped: {self._clock.fault}")
        return self._clock.verified

    @property
    def unmatched(self) -> int:
        """Verifications without a launch."""
        return self._clock.meter.unmatched
