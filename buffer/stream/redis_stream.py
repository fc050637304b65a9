"""RedisTraceBuffer: the trace stream in Redis 6.2 or later. Whatever must be atomic happens in stream.lua."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from ..config import BufferConfig
from ..errors import DecodeError, PayloadKeyUnusable
from ..keys import (
    ASKED_ROUND,
    BOUNDS,
    BURIED,
    COUNTS,
    DEAD_LETTERS,
    DEAD_LETTERS_KEPT,
    LEDGER,
    PAYLOAD,
    TRACE_IDS,
    TRACES,
)
from ..redis_client import load_script, refuse_text_client, translate_redis_errors
from ..retention import MemoryOnly
from .payload_seal import PayloadSeal
from .redis_payloads import NO_PAYLOAD, Page, RedisPayloads, Row, Word
from .trace import DraftTrace
from .trace_buffer import MAX_DELIVERIES, MAX_WAIT_S, TOO_MANY_DELIVERIES, BufferCounts, TraceEntry, entry_order
from .trace_codec import decode_entries, decode_trace, encode_trace

#: Entries fetched per round trip by replay: enough to hide the trip, few enough for one reply to stay small.
_REPLAY_PAGE = 32


class RedisTraceBuffer:
    """A TraceBuffer on Redis; threads and processes may share the stream, and threads this object.

    Consumer names must be unique among running learners: a new object resumes every consumer, so that a restarted
    learner gets at once what an earlier process of its name left pending. Entries of any consumer are delivered again
    after `claim_idle_ms`.

    `clock` (unix seconds) dates entries and bounds their age; None takes the server's clock, the only one that all
    writers share. Every method may raise BufferUnavailable and blocks for about redis_client.TIMEOUT_S per round trip
    at most.
    """

    def __init__(self, client: redis.Redis, config: BufferConfig, clock: Callable[[], float] | None = None) -> None:
        refuse_text_client(client)
        self._client = client
        self._config = config
        self._clock = clock
        self._script = load_script(client, Path(__file__).with_name("stream.lua"))
        keys = (TRACES, COUNTS, LEDGER, DEAD_LETTERS, TRACE_IDS, BURIED, BOUNDS, PAYLOAD)
        self._keys = [key.name(config.speculator) for key in keys]
        self._traces, _, _, self._dead_letters, *_ = self._keys
        self._payloads = RedisPayloads(client, self._script, self._keys)
        self._asked = ASKED_ROUND.name(config.speculator)
        self._memory_only = MemoryOnly(client) if config.keeps_nothing else None
        self._seal = PayloadSeal(config.payload_key_file)
        self._resumed: dict[str, str] = {}  # consumer -> id after which its own pending entries go on; "": none left

    def append(self, traces: Sequence[DraftTrace]) -> list[str]:
        """As the contract says; a trace must stay below Redis' largest string (512 MB).

        ConfigError, and nothing appended, where nothing may reach a disk and this Redis writes to one;
        PayloadKeyUnusable where traces are to be encrypted and cannot be.
        """
        if self._memory_only is not None:  # every time: Redis may have been restarted with other settings
            self._memory_only.require()
        payloads = [self._seal.seal(encode_trace(trace)) for trace in traces]
        return self._append_raw(payloads, [trace.trace_id for trace in traces])

    def _append_raw(self, payloads: Sequence[bytes], trace_ids: Sequence[str] = ()) -> list[str]:
        """Append bytes as they are; without `trace_ids` duplicates are not recognised."""
        if not payloads:
            return []
        with translate_redis_errors(self._client):
            ids = self._payloads.append(self._words("append", ()), payloads, trace_ids or [""] * len(payloads))
        return [entry_id.decode() for entry_id in ids]

    def claim(
        self, consumer: str, max_traces: int, before_decoding: Callable[[Sequence[str]], object] | None = None
    ) -> list[TraceEntry]:
        while max_traces > 0 and (rows := self._claim_raw(consumer, max_traces)):
            fresh = self._bury_too_often_delivered(rows)
            if before_decoding is not None:
                before_decoding([entry_id for entry_id, _ in fresh])
            entries = [entry for entry_id, raw in fresh if (entry := self._decode(entry_id, raw))]
            if entries:  # A page of nothing but dead letters is not the end of the stream.
                return entries
        return []

    def resume(self, consumer: str) -> None:
        self._resumed.pop(consumer, None)

    def _claim_raw(self, consumer: str, max_traces: int) -> list[Row]:
        self._run("prepare")
        resume = self._resumed.get(consumer, "0-0")
        if resume:
            rows = self._read_group(consumer, resume, max_traces)
            self._resumed[consumer] = rows[-1][0] if rows else ""
            if rows:
                return rows
        rows = self._abandoned(consumer, max_traces)
        return rows + self._read_group(consumer, ">", max_traces - len(rows))

    def _abandoned(self, consumer: str, max_rows: int) -> list[Row]:
        """Take over what any consumer left idle. One command looks at only a part of the pending entries."""
        rows: list[Row] = []
        start = b"0-0"
        while len(rows) < max_rows:
            with translate_redis_errors(self._client):
                reply: Any = self._client.xautoclaim(
                    self._traces,
                    self._config.group,
                    consumer,
                    self._config.claim_idle_ms,
                    start_id=start,
                    count=max_rows - len(rows),
                )
            rows += self._rows(reply[1])
            start = reply[0]
            if start == b"0-0":
                break
        return rows

    def _read_group(self, consumer: str, after: str, max_rows: int) -> list[Row]:
        """Unread entries with ">", else this consumer's own pending entries after the id `after`."""
        if max_rows < 1:  # to Redis, a count of 0 is no limit
            return []
        with translate_redis_errors(self._client):
            reply: Any = self._client.xreadgroup(self._config.group, consumer, {self._traces: after}, count=max_rows)
        # redis-py answers [[name, rows]] in RESP2, {name: rows} or {name: [rows]} in RESP3.
        pages = list(reply.values()) if isinstance(reply, dict) else [page for _, page in reply]
        page = pages[0] if pages else []
        return self._rows(page[0] if page and isinstance(page[0], list) else page)

    def _rows(self, page: Page) -> list[Row]:
        with translate_redis_errors(self._client):
            return self._payloads.rows(page)

    def _bury_too_often_delivered(self, rows: list[Row]) -> list[Row]:
        """Return the other rows. What is buried stays undecoded: decoding may be what kills its readers."""
        found = self._run("delivered_too_often", MAX_DELIVERIES, *(row[0] for row in rows))
        gone = {entry_id.decode() for entry_id in found}
        for entry_id, raw in rows:
            if entry_id in gone:
                self._run("bury", entry_id, TOO_MANY_DELIVERIES, raw or b"")
        return [row for row in rows if row[0] not in gone]

    def _decode(self, entry_id: str, raw: bytes | None) -> TraceEntry | None:
        if raw is None:  # Nothing happens if it was trimmed since it was claimed: it is not pending any more.
            self._run("bury", entry_id, NO_PAYLOAD, b"")
            return None
        try:
            return TraceEntry(entry_id, decode_trace(self._seal.open(raw)))
        except DecodeError as error:
            self._run("bury", entry_id, error.reason, error.raw)
            return None

    def forgive(self, entry_ids: Sequence[str]) -> int:
        return int(self._run("forgive", *entry_ids)) if entry_ids else 0

    def ack(self, entry_ids: Sequence[str], outcome: str) -> int:
        return int(self._run("ack", outcome, *entry_ids)) if entry_ids else 0

    def replay(self, max_traces: int, acked_only: bool = False, after_id: str = "") -> Iterator[TraceEntry]:
        acked = self._is_acked() if acked_only else lambda _: True
        rows: list[Row] = []
        newest = "+"
        while len(rows) < max_traces:
            with translate_redis_errors(self._client):
                oldest = f"({after_id}" if after_id else "-"
                page: Any = self._client.xrevrange(self._traces, max=newest, min=oldest, count=_REPLAY_PAGE)
            wanted = [row for row in page if acked(row[0].decode())]
            rows += self._rows(wanted[: max_traces - len(rows)])
            if len(page) < _REPLAY_PAGE:
                break
            newest = f"({page[-1][0].decode()}"
        return decode_entries(((entry_id, raw) for entry_id, raw in reversed(rows) if raw is not None), self._seal.open)

    def require_key(self) -> None:
        """PayloadKeyUnusable unless the newest trace here can be decrypted, or none has to be. For a reader's start."""
        self._seal.require()
        with translate_redis_errors(self._client):
            page: Any = self._client.xrevrange(self._traces, count=1)
        for _, raw in self._rows(page):
            try:
                self._seal.open(raw or b"")
            except DecodeError as fault:
                raise PayloadKeyUnusable(f"{fault.reason}; nothing was read") from None

    def _is_acked(self) -> Callable[[str], bool]:
        last_read, *others = (entry_id.decode() for entry_id in self._run("unacked"))
        unacked = frozenset(others)
        return lambda entry_id: entry_order(entry_id) <= entry_order(last_read) and entry_id not in unacked

    def counts(self) -> BufferCounts:
        pending, here, waits_ms, kept_ms, max_bytes, *flat = self._run("counts")
        fields = dict(zip(map(bytes.decode, flat[::2]), flat[1::2], strict=True))
        counted = _counts(pending, here, {name: int(value) for name, value in fields.items() if name != "last"})
        return replace(counted, oldest_pending_s=_s(waits_ms), oldest_kept_s=_s(kept_ms), max_bytes=max_bytes)

    def oldest_wait_s(self) -> float | None:
        return _s(self._run("oldest_wait"))

    def ask_for_round(self, by: str) -> None:
        with translate_redis_errors(self._client):
            self._client.xadd(self._asked, {"by": by}, maxlen=1, approximate=False)

    def take_ask(self) -> bool:
        with translate_redis_errors(self._client):
            return bool(self._client.delete(self._asked))

    def wait_for_ask(self, after_id: str, wait_s: float) -> str:
        with translate_redis_errors(self._client):
            if wait_s > 0:  # Its reply has a different shape in every protocol, so it only says when to look.
                block_ms = math.ceil(min(wait_s, MAX_WAIT_S) * 1000)
                self._client.xread({self._asked: after_id or "0-0"}, count=1, block=block_ms)
            newest: Any = self._client.xrange(self._asked, min=f"({after_id}" if after_id else "-", count=1)
        return newest[0][0].decode() if newest else ""

    def dead_letters(self, max_letters: int) -> list[tuple[str, bytes]]:
        if max_letters < 1:
            return []
        with translate_redis_errors(self._client):
            page: Any = self._client.xrevrange(self._dead_letters, count=max_letters)
        return [(fields[b"reason"].decode(), fields[b"raw"]) for _, fields in reversed(page)]

    def _run(self, verb: str, *args: Word) -> Any:
        with translate_redis_errors(self._client):
            return self._script(keys=self._keys, args=self._words(verb, args))

    def _words(self, verb: str, args: Sequence[Word]) -> list[Word]:
        config = self._config
        now_ms = "" if self._clock is None else int(self._clock() * 1000)
        return [verb, config.group, now_ms, config.max_bytes, int(config.max_age_s * 1000), DEAD_LETTERS_KEPT, *args]


def _s(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _counts(pending: int, entries: int, numbers: Mapping[str, int]) -> BufferCounts:
    named = {name: numbers.get(name, 0) for name in ("delivered", "dead_lettered", "trimmed", "bytes")}
    acked = {name.removeprefix("acked:"): n for name, n in numbers.items() if name.startswith("acked:")}
    return BufferCounts(pending=pending, entries=entries, acked=acked, **named)
