"""MemoryTraceBuffer: the trace stream inside one process, for tests and for programs without services."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from threading import RLock

from ..base import MAX_DELIVERIES, TOO_MANY_DELIVERIES, BufferCounts, TraceEntry, place
from ..codec import decode_entries, decode_trace, encode_trace
from ..config import BufferConfig
from ..errors import DecodeError
from ..keys import DEAD_LETTERS_KEPT
from ..trace import DraftTrace


class _State(Enum):
    UNREAD = auto()
    PENDING = auto()
    ACKED = auto()
    BURIED = auto()


#: Who waits for nothing any more.
_ENDED = {_State.ACKED, _State.BURIED}


@dataclass(slots=True)
class _Entry:
    entry_id: str
    born_ms: int
    raw: bytes
    trace_id: str  # empty: appended as mere bytes
    state: _State = _State.UNREAD
    claimed_ms: float = 0.0
    consumer: str = ""  # who claimed it last
    deliveries: int = 0


@dataclass(slots=True)
class _Tally:
    delivered: int = 0
    dead_lettered: int = 0
    trimmed: int = 0
    acked: Counter[str] = field(default_factory=Counter)


class MemoryTraceBuffer:
    """A TraceBuffer in memory; threads may share it. It keeps encoded bytes, so that it refuses what the wire refuses.

    `clock` (unix seconds) dates entries and claims.
    """

    def __init__(self, config: BufferConfig, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._clock = clock
        self._lock = RLock()
        self._entries: dict[str, _Entry] = {}  # oldest first
        self._by_trace_id: dict[str, str] = {}  # trace id -> id of the entry that holds it
        self._resuming: dict[str, tuple[int, int]] = {}  # consumer -> place behind which its pending entries go on
        self._last_ms = 0
        self._tally = _Tally()
        self._dead: deque[tuple[str, bytes]] = deque(maxlen=DEAD_LETTERS_KEPT)

    def append(self, traces: Sequence[DraftTrace]) -> list[str]:
        """See TraceBuffer."""
        return self._append_raw([encode_trace(trace) for trace in traces], [trace.trace_id for trace in traces])

    def _append_raw(self, payloads: Sequence[bytes], trace_ids: Sequence[str] = ()) -> list[str]:
        """Append bytes as they are; without `trace_ids` nothing is known twice."""
        names = trace_ids or [""] * len(payloads)
        if not payloads:
            return []
        with self._lock:
            self._trim()  # what is about to leave must not stand in the way of its own return
            ids = [self._append_one(raw, trace_id) for raw, trace_id in zip(payloads, names, strict=True)]
            self._trim()
        return ids

    def _append_one(self, raw: bytes, trace_id: str) -> str:
        if trace_id in self._by_trace_id:
            return self._by_trace_id[trace_id]
        self._last_ms = max(self._last_ms, self._now_ms())
        self._tally.delivered += 1
        entry_id = f"{self._last_ms}-{self._tally.delivered}"
        self._entries[entry_id] = _Entry(entry_id, self._last_ms, raw, trace_id)
        if trace_id:
            self._by_trace_id[trace_id] = entry_id
        return entry_id

    def claim(
        self, consumer: str, max_traces: int, before_opening: Callable[[Sequence[str]], object] | None = None
    ) -> list[TraceEntry]:
        """See TraceBuffer."""
        with self._lock:
            self._trim()
            while max_traces > 0 and (batch := self._claimable(consumer, max_traces)):
                fresh = [entry for entry in batch if not self._is_worn(entry, consumer)]
                if before_opening is not None:
                    before_opening([entry.entry_id for entry in fresh])
                entries = [opened for entry in fresh if (opened := self._open(entry))]
                if entries:  # nothing but dead letters is not yet the end of the stream
                    return entries
        return []

    def resume(self, consumer: str) -> None:
        """See TraceBuffer. No consumer outlives this process, so nothing but this call makes one resume."""
        with self._lock:
            self._resuming[consumer] = (0, 0)

    def _claimable(self, consumer: str, max_traces: int) -> list[_Entry]:
        own = list(islice(self._resumed(consumer), max_traces))
        if own:
            self._resuming[consumer] = place(own[-1].entry_id)
            return own
        self._resuming.pop(consumer, None)
        free = (entry for entry in self._entries.values() if self._is_claimable(entry))
        return list(islice(free, max_traces))

    def _resumed(self, consumer: str) -> Iterator[_Entry]:
        """What `consumer` holds, as far as it has not been handed out again since it resumed."""
        if consumer in self._resuming:
            for entry in self._entries.values():
                is_own = entry.state is _State.PENDING and entry.consumer == consumer
                if is_own and place(entry.entry_id) > self._resuming[consumer]:
                    yield entry

    def _is_claimable(self, entry: _Entry) -> bool:
        if entry.state is _State.PENDING:
            return self._now_ms() - entry.claimed_ms >= self._config.claim_idle_ms
        return entry.state is _State.UNREAD

    def _is_worn(self, entry: _Entry, consumer: str) -> bool:
        """Hand the entry out once more, or bury it when that was done too often."""
        entry.state, entry.claimed_ms, entry.consumer = _State.PENDING, self._now_ms(), consumer
        entry.deliveries += 1
        if entry.deliveries <= MAX_DELIVERIES:
            return False
        # Not decoded: that may be what its readers die of.
        self._bury(entry, TOO_MANY_DELIVERIES, entry.raw)
        return True

    def _open(self, entry: _Entry) -> TraceEntry | None:
        try:
            return TraceEntry(entry.entry_id, decode_trace(entry.raw))
        except DecodeError as error:
            self._bury(entry, error.reason, error.raw)
            return None

    def _bury(self, entry: _Entry, reason: str, raw: bytes) -> None:
        entry.state = _State.BURIED
        self._tally.dead_lettered += 1
        self._dead.append((reason, raw))

    def forgive(self, entry_ids: Sequence[str]) -> int:
        """See TraceBuffer."""
        with self._lock:
            entries = filter(None, map(self._entries.get, entry_ids))
            pending = [entry for entry in entries if entry.state is _State.PENDING]
            for entry in pending:
                entry.deliveries = max(entry.deliveries - 1, 0)
        return len(pending)

    def ack(self, entry_ids: Sequence[str], outcome: str) -> int:
        """See TraceBuffer. An id that is unknown, or acked already, counts nothing."""
        ended = 0
        with self._lock:
            for entry_id in entry_ids:
                entry = self._entries.get(entry_id)
                if entry and entry.state is _State.PENDING:
                    entry.state = _State.ACKED
                    ended += 1
            if ended:
                self._tally.acked[outcome] += ended
        return ended

    def replay(self, max_traces: int, acked_only: bool = False) -> Iterator[TraceEntry]:
        """See TraceBuffer. What is yielded is settled by this call; decoding happens one by one."""
        with self._lock:
            newest_first = (e for e in reversed(self._entries.values()) if not acked_only or e.state is _State.ACKED)
            rows = [(entry.entry_id, entry.raw) for entry in islice(newest_first, max(max_traces, 0))]
        return decode_entries(reversed(rows))

    def counts(self) -> BufferCounts:
        """See TraceBuffer."""
        with self._lock:
            return BufferCounts(
                delivered=self._tally.delivered,
                pending=sum(entry.state not in _ENDED for entry in self._entries.values()),
                dead_lettered=self._tally.dead_lettered,
                acked=dict(self._tally.acked),
                trimmed=self._tally.trimmed,
                bytes=sum(len(entry.raw) for entry in self._entries.values()),
                entries=len(self._entries),
            )

    def dead_letters(self, max_letters: int) -> list[tuple[str, bytes]]:
        """See TraceBuffer; the newest DEAD_LETTERS_KEPT are there to be read."""
        with self._lock:
            return list(self._dead)[-max_letters:] if max_letters > 0 else []

    def _trim(self) -> None:
        size = sum(len(entry.raw) for entry in self._entries.values())
        oldest_ms = self._now_ms() - int(self._config.max_age_s * 1000)
        for entry in list(self._entries.values()):
            if size <= self._config.max_bytes and entry.born_ms >= oldest_ms:
                return
            size -= len(entry.raw)
            self._tally.trimmed += entry.state not in _ENDED
            del self._entries[entry.entry_id]
            self._by_trace_id.pop(entry.trace_id, None)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
