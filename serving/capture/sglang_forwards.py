"""Hooks of workers that do a forward in one call, of a prefill or of a verify round, and what they share.

None raises; three faults in a row (serving/breaker.py) end capture.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from ..breaker import Breaker
from .sglang_capture import SglangCapture


class SglangForwards(ABC):
    """Hook bodies for the scheduler thread of every rank."""

    algorithm: ClassVar[str]

    def __init__(self, *before: Callable[[Any, Any], None]) -> None:
        """Each of `before` is told of the worker and the batch of every forward, and must not raise."""
        self._before = before
        self._breaker = Breaker(what=f"following {self.algorithm}")
        self._capture: SglangCapture | None = None
        self._batch: Any = None  # of the forward that runs
        self._is_prefill = False

    def follow(self, capture: SglangCapture, breaker: Breaker) -> None:
        """On the entry rank: tell `capture` too, whose `breaker` counts the faults from here on."""
        self._capture = capture
        self._breaker = breaker

    @abstractmethod
    def hooks(self) -> dict[str, tuple[str, Callable[..., Any]]]:
        """What to install."""

    def around_forward(self, forward: Callable[..., Any], worker: Any, batch: Any, *rest: Any, **named: Any) -> Any:
        """AROUND forward_batch_generation(batch, ...), of a prefill or of a verify round."""
        for told in self._before:
            told(worker, batch)
        self._quietly(self._begin, worker, batch)
        try:
            result = forward(worker, batch, *rest, **named)
            self._quietly(self._end, result)
        finally:
            self._forget()
        return result

    def _begin(self, _worker: Any, batch: Any) -> None:
        self._batch = batch
        self._is_prefill = batch.forward_mode.is_extend()

    def _end(self, result: Any) -> None:
        if self._capture is not None and self._is_prefill:
            self._capture.after_prefill(result)

    def _forget(self) -> None:
        self._batch = None

    def _quietly(self, body: Callable[..., None], *arguments: Any) -> None:
        """Without raising, and without a forward that nobody counts: requests whose tokens are not seen are lost."""
        if self._breaker.reason:
            return
        try:
            body(*arguments)
        except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
            self._breaker.note(f"a forward of {self.algorithm}", fault)
            if self._capture is not None and self._batch is not None:
                self._breaker.guard(self._capture.lose_batch)(self._batch)
