"""Captured forwards on their way out of the scheduler thread: put aside one by one, sent many at once.

Code that runs once between two forwards finds the processor's caches cold and takes several times as long as the same
code in a row. So the scheduler thread only appends, and every so often makes the letter for all that lies here.
"""

import threading
from collections import deque
from collections.abc import Callable

from ..breaker import Breaker
from ..wire.messages import WireForward
from ..wire.request_forward import Commit
from .courier_sender import CourierSender
from .device_output import HostForward

#: Forwards, and bytes of their tensors, that go at once; sooner when a request ends, the watch comes by, or a canary
#: drafts, whose rounds are to be counted soon.
MAX_FORWARDS, MAX_BYTES = 16, 16 << 20


class Outbox:
    """Holds forwards for `link`. `add` is for the scheduler thread; `flush` for any, and it raises nothing."""

    def __init__(self, link: CourierSender, breaker: Breaker, is_canary: Callable[[], bool]) -> None:
        self.link = link
        self._breaker, self._is_canary = breaker, is_canary
        self._waiting: deque[tuple[HostForward, tuple[Commit, ...]]] = deque()
        self._waiting_bytes = 0
        self._flushing = threading.Lock()
        self.flush = breaker.guard(self._flush)

    def add(self, step: HostForward, commits: tuple[Commit, ...]) -> None:
        """Put one forward aside, whose tensors must not change any more; then send all when it is time."""
        self._waiting.append((step, commits))
        self._waiting_bytes += sum(tensor.nbytes for tensor in step.tensors.values())
        is_full = len(self._waiting) >= MAX_FORWARDS or self._waiting_bytes >= MAX_BYTES
        if is_full or self._is_canary() or any(commit.finish for commit in commits):
            self.flush()

    def _flush(self) -> None:
        with self._flushing:  # forwards leave in their order, whoever sends them
            self._waiting_bytes = 0
            forwards = []
            while self._waiting:
                forwards += self._to_wire(*self._waiting.popleft())
            if forwards:
                self.link.offer(forwards)

    def _to_wire(self, step: HostForward, commits: tuple[Commit, ...]) -> list[WireForward]:
        try:
            return [step.to_wire(commits)]
        except Exception as fault:  # noqa: BLE001 - it costs the traces of its requests, and not one token
            self._breaker.note("outbox", fault)
            self.link.lose(step.chosen.request_ids)
            return []
