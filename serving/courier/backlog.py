"""Traces that wait for the buffer, oldest first."""

from collections import deque

from ...buffer.stream.trace import DraftTrace

#: Traces, and bytes of their arrays, per append; one append is one round trip, and Redis must answer it within
#: redis_client.TIMEOUT_S. A larger trace goes alone.
APPEND_TRACES = 16
APPEND_BYTES = 32 << 20


class Backlog:
    """At most `max_bytes` of traces, estimated by their arrays, once `cut` was called."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._traces: deque[DraftTrace] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._traces)

    @property
    def is_over_full(self) -> bool:
        """Whether it holds more than it may."""
        return self._bytes > self._max_bytes and bool(self._traces)

    def add(self, trace: DraftTrace) -> None:
        """Put one at the end."""
        self._traces.append(trace)
        self._bytes += size_bytes(trace)

    def head(self) -> list[DraftTrace]:
        """The oldest, as many as one append takes."""
        found: list[DraftTrace] = []
        head_bytes = 0
        for trace in self._traces:
            head_bytes += size_bytes(trace)
            if found and (len(found) == APPEND_TRACES or head_bytes > APPEND_BYTES):
                break
            found.append(trace)
        return found

    def pop(self) -> int:
        """Remove the oldest; return its bytes."""
        size = size_bytes(self._traces.popleft())
        self._bytes -= size
        return size

    def cut(self) -> int:
        """Drop the oldest until the others are no more than `max_bytes`; return how many these were."""
        dropped = 0
        while self.is_over_full:
            self.pop()
            dropped += 1
        return dropped


def size_bytes(trace: DraftTrace) -> int:
    """Of its arrays."""
    rounds = trace.rounds
    arrays = trace.features, trace.prefix, trace.tokens, rounds.teacher_ids, rounds.teacher_logprobs
    return sum(array.nbytes for array in arrays)
