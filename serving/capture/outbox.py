"""Captured forwards on their way out of the scheduler thread: put aside one by one, sent many at once.

Code that runs once between two forwards finds the processor's caches cold and takes several times as long as the same
code in a row. So the scheduler thread only appends, and every so often makes one message of all that is here.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ..breaker import Breaker
from ..wire.counts import DropReason
from ..wire.request_forward import Commit
from .courier_sender import CourierSender
from .device_output import Chosen, ForwardOutput

#: Forwards, and bytes of their tensors, that go at once; sooner when a request ends, when the courier is looked after,
#: or while a canary drafts on any replica: it is compared with the rounds of the others as they are served.
MAX_FORWARDS = 16
MAX_BYTES = 16 << 20
#: Beside its tensors, a forward's head and names at most, and what is said of each of its requests, roughly.
FORWARD_BYTES = 512
REQUEST_BYTES = 256

_T = TypeVar("_T")
_Waiting = tuple[ForwardOutput, tuple[Commit, ...]]


class Outbox:
    """Holds forwards for `sender`. `add` is for the scheduler thread; `flush` for any, and it raises nothing."""

    def __init__(self, sender: CourierSender, breaker: Breaker, is_canary_out: Callable[[], bool]) -> None:
        self.sender = sender
        self._breaker = breaker
        self._is_canary_out = is_canary_out
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._flushing = threading.Lock()
        self.flush = breaker.guard(self._flush)

    def add(self, forward: ForwardOutput, commits: tuple[Commit, ...]) -> None:
        """Put one forward aside, whose tensors must not change any more; then send all when it is time."""
        self._waiting.append((forward, commits))
        self._waiting_bytes += forward.size_bytes
        is_full = len(self._waiting) >= MAX_FORWARDS or self._waiting_bytes >= MAX_BYTES
        if is_full or self._is_canary_out() or any(commit.finish for commit in commits):
            self.flush()

    def lose(
        self, chosen: Chosen, commits: tuple[Commit, ...] | None = None, reason: DropReason = DropReason.FAULT
    ) -> None:
        """A committed forward is lost; `commits` is what became visible by it, if known. For the scheduler thread."""
        self.flush()  # as below: requests may have begun or ended in what waits
        self.sender.lose(chosen.request_ids, commits, reason, may_begin=chosen.is_prefill)

    def _flush(self) -> None:
        with self._flushing:  # forwards leave in their order, whichever thread sends them
            self._waiting_bytes = 0
            waiting = []
            while self._waiting:
                waiting.append(self._waiting.popleft())
            if not waiting:
                return
            # Asked before anything is gathered and encoded: on a full line that would be the steady state.
            if not self.sender.has_room(sum(map(_encoded_bytes, waiting))):
                self._send(ForwardOutput.head, self.sender.refuse, waiting)
            else:
                self._send(ForwardOutput.to_wire, self.sender.offer, waiting)

    def _send(
        self,
        make: Callable[[ForwardOutput, tuple[Commit, ...]], _T],
        send: Callable[[list[_T]], object],
        waiting: list[_Waiting],
    ) -> None:
        made: list[_T] = []
        for forward, commits in waiting:
            try:
                made.append(make(forward, commits))
            except Exception as fault:  # noqa: BLE001 - it costs the traces of its requests, and not one token
                self._breaker.note("outbox", fault)
                if made:  # the sender has to know which requests had begun, and which had ended, before this one
                    send(made)
                made = []
                chosen = forward.chosen
                self.sender.lose(chosen.request_ids, commits, may_begin=chosen.is_prefill)
        if made:
            send(made)


def _encoded_bytes(waiting: _Waiting) -> int:
    forward, commits = waiting
    return forward.size_bytes + FORWARD_BYTES + REQUEST_BYTES * len(commits)
