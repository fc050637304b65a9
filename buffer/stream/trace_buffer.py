"""TraceBuffer: the contract of the stream of traces between serving and learners.

The product runs on Redis (redis_stream.py). Every call may raise BufferUnavailable; none retries by itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .trace import DraftTrace


class TraceEntry(NamedTuple):
    """A trace and its id in the stream; ids sort by age as (milliseconds, sequence)."""

    entry_id: str
    trace: DraftTrace


def entry_order(entry_id: str) -> tuple[int, int]:
    """The sort key of an entry id: milliseconds, then sequence."""
    ms, _, sequence = entry_id.partition("-")
    return int(ms), int(sequence or 0)


#: How often an entry is delivered; the next claim that meets it makes it a dead letter. A trace that kills its readers
#: must not come back for ever; five deliveries are enough to survive unrelated failures.
MAX_DELIVERIES = 5

#: The reason recorded with such a dead letter.
TOO_MANY_DELIVERIES = f"delivered {MAX_DELIVERIES} times and never acked"

#: The longest that one call waits for an event; a follower calls again.
MAX_WAIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferCounts:
    """Where every appended trace went: delivered == pending + dead_lettered + sum(acked.values()) + trimmed."""

    delivered: int  # appended since the stream was made; a trace sent twice counts once
    pending: int  # not acked yet: never read, or read by a consumer that has not finished
    dead_lettered: int  # could not be decoded, or was delivered MAX_DELIVERIES times and never acked; bytes kept
    acked: Mapping[str, int]  # outcome -> count
    trimmed: int  # removed by size or age before anybody acked them
    bytes: int  # payload bytes in the stream now
    entries: int = 0  # entries in the stream now, acked ones included
    # As of the call, and no part of what makes two counts equal. None: there is no such entry.
    oldest_pending_s: float | None = field(default=None, compare=False)  # how long the oldest pending entry is here
    oldest_kept_s: float | None = field(default=None, compare=False)  # how long the oldest entry is here
    max_bytes: int | None = field(default=None, compare=False)  # the bound that is in force


class TraceBuffer(Protocol):
    """A durable stream of traces with one consumer group. Reading removes nothing; ack only ends pending.

    The bounds on bytes and age belong to the stream: append stores those of its caller, and they are in force for every
    caller until the next append. Traces hold user content and must leave by age when nobody appends either, so claim
    and counts trim as well. A stream without stored bounds is held to the caller's.
    """

    def append(self, traces: Sequence[DraftTrace]) -> list[str]:
        """Append and return the entry ids; then trim to the caller's bounds, oldest first.

        A trace whose trace_id is already in the stream, or that comes twice in `traces`, is not stored again: the id
        of the entry that holds it is returned, and nothing is counted. After an error any of the traces may be stored,
        each with its counts or not at all, so the caller may append them again.
        """
        ...

    def claim(
        self, consumer: str, max_traces: int, before_decoding: Callable[[Sequence[str]], object] | None = None
    ) -> list[TraceEntry]:
        """Return up to `max_traces` entries that `consumer` must now ack, oldest first; [] when there are none.

        Trims to the stream's bounds first. Entries that any consumer, `consumer` included, left pending longer than
        the configured idle time come before new ones. Bytes that cannot be decoded, and entries already delivered
        MAX_DELIVERIES times, become dead letters and are not returned. Does not block.

        `before_decoding` gets the ids before any entry is decoded, because decoding may be what kills a reader. If it
        raises, they stay pending.
        """
        ...

    def resume(self, consumer: str) -> None:
        """Let the next claims of `consumer` begin with what it holds and has not acked, without any idle time.

        For a consumer that gave up half-way and starts again: the claims take these entries oldest first, before all
        others, each once per call of `resume`. Local bookkeeping only; cannot fail.
        """
        ...

    def forgive(self, entry_ids: Sequence[str]) -> int:
        """Count one delivery less for each of these entries that is pending; return how many were.

        For a reader that failed through no fault of these entries. Their consumer keeps them, and their idle time
        goes on. Not idempotent: a call repeated because its reply was lost forgives another delivery. The count of
        deliveries never falls below zero.
        """
        ...

    def ack(self, entry_ids: Sequence[str], outcome: str) -> int:
        """End pending for these entries and count `outcome` for each that was pending; return how many were.

        Ids that are unknown or already acked count nothing.
        """
        ...

    def replay(self, max_traces: int, acked_only: bool = False, after_id: str = "") -> Iterator[TraceEntry]:
        """Yield the newest `max_traces` traces still in the stream, oldest first, consuming nothing.

        `acked_only` leaves out entries that are pending, unread or dead letters, `after_id` those up to it. Undecodable
        entries are skipped (claim makes them dead letters). This call fixes what is yielded; each is decoded in turn.
        """
        ...

    def counts(self) -> BufferCounts:
        """Where every appended trace is now, once the stream is trimmed to its bounds; all zero without a stream."""
        ...

    def oldest_wait_s(self) -> float | None:
        """For how long the oldest pending entry has been in the stream, in seconds; None when none is pending.

        Entries that a consumer holds and has not acked are pending too. Trims nothing.
        """
        ...

    def ask_for_round(self, by: str) -> None:
        """Ask for a learning round however few traces are pending; a second ask before that round adds nothing."""
        ...

    def take_ask(self) -> bool:
        """Whether a learning round was asked for since the last call; of all callers, one gets true for an ask."""
        ...

    def wait_for_ask(self, after_id: str, wait_s: float) -> str:
        """Id of an ask that nobody has taken and that is newer than `after_id`; empty when there is none.

        With an empty id, of any such ask. Blocks up to `wait_s`, at most MAX_WAIT_S, until there is one.
        """
        ...

    def dead_letters(self, max_letters: int) -> list[tuple[str, bytes]]:
        """The newest dead letters as (reason, raw bytes), oldest first; DEAD_LETTERS_KEPT are kept."""
        ...
