"""The bounded line between SGLang's scheduler thread and the courier thread."""

import queue
import threading
from collections.abc import Iterable

from .steps import Step


class Tap:
    """A bounded queue of forward batches. Neither side ever blocks the scheduler.

    A batch that finds the tap full is lost; its request ids are remembered, so that the assembler can drop their
    windows instead of gluing together what does not belong together.
    """

    def __init__(self, max_batches: int) -> None:
        self._batches: queue.SimpleQueue[list[Step]] = queue.SimpleQueue()
        self._max_batches = max_batches
        self._lost: set[str] = set()
        self._lock = threading.Lock()
        self._pause = threading.Event()  # never set

    def offer(self, steps: list[Step]) -> bool:
        """Enqueue one forward batch; False, and its requests marked as lost, when the tap is full. Never blocks."""
        if self._batches.qsize() >= self._max_batches:
            self.lose(step.request_id for step in steps)
            return False
        self._batches.put(steps)
        return True

    def lose(self, request_ids: Iterable[str]) -> None:
        """Mark requests of which a step is missing."""
        with self._lock:
            self._lost.update(request_ids)

    def take(self, wait_s: float, max_batches: int = 256) -> tuple[list[list[Step]], set[str]]:
        """Wait `wait_s`; return what is there then, oldest first, and the requests lost so far.

        Add the batches before dropping the lost requests: all their earlier steps are among them.
        """
        batches: list[list[Step]] = []
        # Not a blocking get: waking for every single batch would fight the scheduler for the GIL at every step.
        self._pause.wait(wait_s)
        with self._lock:
            lost, self._lost = self._lost, set()
        try:
            while len(batches) < max_batches:
                batches.append(self._batches.get_nowait())
        except queue.Empty:
            return batches, lost
        self.lose(lost)  # their steps may still be waiting, so the word about them waits as well
        return batches, set()
