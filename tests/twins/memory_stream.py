"""MemoryTraceBuffer: the trace stream inside one process, for tests."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile

from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import DecodeError
from paceline.buffer.stream.trace import DraftTrace
from paceline.buffer.stream.trace_buffer import (
    MAX_DELIVERIES,
    MAX_WAIT_S,
    TOO_MANY_DELIVERIES,
    BufferCounts,
    TraceEntry,
    entry_order,
)
from paceline.buffer.stream.trace_codec import decode_entries, decode_trace, encode_trace
from twins.stream_entries import ENDED, EntryState, MemoryStream, StreamEntry


class MemoryTraceBuffer:
    """A TraceBuffer in memory; threads may share it. It keeps encoded bytes, so that it refuses what the wire refuses.

    `clock` (unix seconds) dates entries and claims.
    """

    def __init__(
        self,
        config: BufferConfig,
        clock: Callable[[], float] = time.time,
        stream: MemoryStream | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._stream = stream or MemoryStream()
        self._lock = self._stream.lock
        self._resuming: dict[str, tuple[int, int]] = {}  # consumer -> order of the entry after which its own go on

    def append(self, traces: Sequence[DraftTrace]) -> list[str]:
        return self._append_raw([encode_trace(trace) for trace in traces], [trace.trace_id for trace in traces])

    def _append_raw(self, payloads: Sequence[bytes], trace_ids: Sequence[str] = ()) -> list[str]:
        """Append bytes as they are; without `trace_ids` duplicates are not recognised."""
        names = trace_ids or [""] * len(payloads)
        if not payloads:
            return []
        with self._lock:
            self._stream.bounds = self._config
            self._trim()  # An entry that is about to leave must not keep its own trace from being stored again.
            ids = [self._append_one(raw, trace_id) for raw, trace_id in zip(payloads, names, strict=True)]
            self._trim()
        return ids

    def _append_one(self, raw: bytes, trace_id: str) -> str:
        stream = self._stream
        if trace_id in stream.by_trace_id:
            return stream.by_trace_id[trace_id]
        stream.last_ms = max(stream.last_ms, self._now_ms())
        stream.delivered += 1
        entry_id = f"{stream.last_ms}-{stream.delivered}"
        stream.entries[entry_id] = StreamEntry(entry_id=entry_id, born_ms=stream.last_ms, raw=raw, trace_id=trace_id)
        if trace_id:
            stream.by_trace_id[trace_id] = entry_id
        return entry_id

    def claim(
        self, consumer: str, max_traces: int, before_decoding: Callable[[Sequence[str]], object] | None = None
    ) -> list[TraceEntry]:
        with self._lock:
            self._trim()
            while max_traces > 0 and (batch := self._claimable(consumer, max_traces)):
                fresh = [entry for entry in batch if self._deliver(entry, consumer)]
                if before_decoding is not None:
                    before_decoding([entry.entry_id for entry in fresh])
                entries = [decoded for entry in fresh if (decoded := self._decode(entry))]
                if entries:  # A page of nothing but dead letters is not the end of the stream.
                    return entries
        return []

    def resume(self, consumer: str) -> None:
        """As the contract says. Consumers do not outlive this process, so a new object resumes none by itself."""
        with self._lock:
            self._resuming[consumer] = (0, 0)

    def _claimable(self, consumer: str, max_traces: int) -> list[StreamEntry]:
        own = list(islice(self._resumed(consumer), max_traces))
        if own:
            self._resuming[consumer] = entry_order(own[-1].entry_id)
            return own
        self._resuming.pop(consumer, None)
        free = (entry for entry in self._stream.entries.values() if self._is_claimable(entry))
        return list(islice(free, max_traces))

    def _resumed(self, consumer: str) -> Iterator[StreamEntry]:
        """The entries that `consumer` holds and that were not delivered again since it resumed."""
        if consumer in self._resuming:
            for entry in self._stream.entries.values():
                is_own = entry.state is EntryState.PENDING and entry.consumer == consumer
                if is_own and entry_order(entry.entry_id) > self._resuming[consumer]:
                    yield entry

    def _is_claimable(self, entry: StreamEntry) -> bool:
        if entry.state is EntryState.PENDING:
            return self._now_ms() - entry.claimed_ms >= self._config.claim_idle_ms
        return entry.state is EntryState.UNREAD

    def _deliver(self, entry: StreamEntry, consumer: str) -> bool:
        """Deliver the entry once more; bury it and return False when that was done too often."""
        entry.state = EntryState.PENDING
        entry.claimed_ms = self._now_ms()
        entry.consumer = consumer
        entry.deliveries += 1
        if entry.deliveries <= MAX_DELIVERIES:
            return True
        # It stays undecoded: decoding may be what kills its readers.
        self._bury(entry, TOO_MANY_DELIVERIES, entry.raw)
        return False

    def _decode(self, entry: StreamEntry) -> TraceEntry | None:
        try:
            return TraceEntry(entry.entry_id, decode_trace(entry.raw))
        except DecodeError as error:
            self._bury(entry, error.reason, error.raw)
            return None

    def _bury(self, entry: StreamEntry, reason: str, raw: bytes) -> None:
        entry.state = EntryState.BURIED
        self._stream.dead_lettered += 1
        self._stream.dead.append((reason, raw))

    def forgive(self, entry_ids: Sequence[str]) -> int:
        with self._lock:
            entries = filter(None, map(self._stream.entries.get, entry_ids))
            pending = [entry for entry in entries if entry.state is EntryState.PENDING]
            for entry in pending:
                entry.deliveries = max(entry.deliveries - 1, 0)
        return len(pending)

    def ack(self, entry_ids: Sequence[str], outcome: str) -> int:
        ended = 0
        with self._lock:
            for entry_id in entry_ids:
                entry = self._stream.entries.get(entry_id)
                if entry and entry.state is EntryState.PENDING:
                    entry.state = EntryState.ACKED
                    ended += 1
            if ended:
                self._stream.acked[outcome] += ended
        return ended

    def replay(self, max_traces: int, acked_only: bool = False, after_id: str = "") -> Iterator[TraceEntry]:
        with self._lock:
            newest_first = reversed(self._stream.entries.values())
            later = takewhile(
                lambda entry: not after_id or entry_order(entry.entry_id) > entry_order(after_id), newest_first
            )
            shown = (entry for entry in later if not acked_only or entry.state is EntryState.ACKED)
            rows = [(entry.entry_id, entry.raw) for entry in islice(shown, max(max_traces, 0))]
        return decode_entries(reversed(rows))

    def counts(self) -> BufferCounts:
        with self._lock:
            self._trim()
            entries = self._stream.entries.values()
            return BufferCounts(
                delivered=self._stream.delivered,
                pending=sum(entry.state not in ENDED for entry in entries),
                dead_lettered=self._stream.dead_lettered,
                acked=dict(self._stream.acked),
                trimmed=self._stream.trimmed,
                bytes=sum(len(entry.raw) for entry in entries),
                entries=len(entries),
                oldest_pending_s=self.oldest_wait_s(),
                oldest_kept_s=self._age_s(next((entry.born_ms for entry in entries), None)),
                max_bytes=(self._stream.bounds or self._config).max_bytes,
            )

    def oldest_wait_s(self) -> float | None:
        with self._lock:
            born_ms = (entry.born_ms for entry in self._stream.entries.values() if entry.state not in ENDED)
            return self._age_s(next(born_ms, None))

    def _age_s(self, born_ms: int | None) -> float | None:
        return None if born_ms is None else max(self._now_ms() - born_ms, 0) / 1000

    def ask_for_round(self, by: str) -> None:
        with self._stream.asked:
            self._stream.asks.append(by)
            self._stream.asked.notify_all()

    def take_ask(self) -> bool:
        with self._stream.asked:
            taken = self._stream.taken
            self._stream.taken = len(self._stream.asks)
            return taken < self._stream.taken

    def wait_for_ask(self, after_id: str, wait_s: float) -> str:
        stream = self._stream
        known = int(after_id or 0)
        with stream.asked:
            stream.asked.wait_for(lambda: len(stream.asks) > max(stream.taken, known), min(wait_s, MAX_WAIT_S))
            return str(len(stream.asks)) if len(stream.asks) > max(stream.taken, known) else ""

    def dead_letters(self, max_letters: int) -> list[tuple[str, bytes]]:
        with self._lock:
            return list(self._stream.dead)[-max_letters:] if max_letters > 0 else []

    def _trim(self) -> None:
        stream = self._stream
        bounds = self._stream.bounds or self._config
        size = sum(len(entry.raw) for entry in stream.entries.values())
        oldest_ms = self._now_ms() - int(bounds.max_age_s * 1000)
        for entry in list(stream.entries.values()):
            if size <= bounds.max_bytes and entry.born_ms >= oldest_ms:
                return
            size -= len(entry.raw)
            stream.trimmed += entry.state not in ENDED
            del stream.entries[entry.entry_id]
            stream.by_trace_id.pop(entry.trace_id, None)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
