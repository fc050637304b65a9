"""The bounded line between SGLang's scheduler thread and the courier thread."""

import threading
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from .steps import Step


class Forward(Protocol):
    """One captured forward of the engine, not yet cut into steps: cutting is the courier's work."""

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The captured requests of its batch."""
        ...

    @property
    def size_bytes(self) -> int:
        """Host memory it holds while it waits."""
        ...

    def steps(self) -> list[Step]:
        """Cut it; may take a millisecond."""
        ...


class Tap:
    """A queue of forwards, bounded by the memory they hold. Neither side ever blocks the scheduler.

    A forward that finds the tap full is lost; its request ids are remembered, so that the assembler can drop their
    windows instead of gluing together what does not belong together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._forwards: deque[Forward] = deque()
        self._bytes, self._max_bytes = 0, max_bytes
        self._lost: set[str] = set()
        self._lock = threading.Lock()
        self._pause = threading.Event()  # never set

    def offer(self, forward: Forward) -> bool:
        """Enqueue one forward; False, and its requests marked as lost, when the tap is full. Never blocks."""
        size_bytes = forward.size_bytes
        with self._lock:
            has_room = self._bytes + size_bytes <= self._max_bytes
            if has_room:
                self._bytes += size_bytes
                self._forwards.append(forward)
            else:
                self._lost.update(forward.request_ids)
        return has_room

    def lose(self, request_ids: Iterable[str]) -> None:
        """Mark requests of which a step is missing."""
        with self._lock:
            self._lost.update(request_ids)

    def take(self, wait_s: float, max_forwards: int = 256) -> tuple[list[Forward], set[str]]:
        """Wait `wait_s`; return what is there then, oldest first, and the requests lost so far.

        Add the forwards before dropping the lost requests: all their earlier steps are among them.
        """
        # Not a blocking get: waking for every single forward would fight the scheduler for the GIL at every step.
        self._pause.wait(wait_s)
        with self._lock:
            taken = [self._forwards.popleft() for _ in range(min(max_forwards, len(self._forwards)))]
            self._bytes -= sum(forward.size_bytes for forward in taken)
            if self._forwards:
                return taken, set()  # steps of lost requests may still be waiting, so the word about them waits too
            lost, self._lost = self._lost, set()
        return taken, lost
