"""The contracts of the post office: TraceBuffer for traces, VersionBoard for versions.

Two implementations ship and pass the same tests: memory.py (one process, no services) and redis_stream.py
with redis_board.py. Every call may raise BufferUnavailable; none retries by itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .lease import Lease
from .trace import DraftTrace
from .version import BoardEvent, BoardState, DraftVersion, VersionState


class TraceEntry(NamedTuple):
    """A trace and where it stands in the stream; ids sort by age as (milliseconds, sequence)."""

    entry_id: str
    trace: DraftTrace


def place(entry_id: str) -> tuple[int, int]:
    """The sort key of an entry id: milliseconds, then sequence."""
    ms, _, sequence = entry_id.partition("-")
    return int(ms), int(sequence or 0)


#: Times an entry is handed out: whoever takes it once more finds it among the dead letters. A trace that kills its
#: reader must not come back for ever; five tries outlast an accident that has nothing to do with it.
MAX_DELIVERIES = 5

#: The longest that one call waits for an event; a follower calls again.
MAX_WAIT_S = 1.0

#: How long a board remembers what a member said last: a server may be down for days before it is started again.
LAST_READING_S = 7 * 24 * 3600.0

#: The reason such a dead letter bears.
TOO_MANY_DELIVERIES = f"handed out {MAX_DELIVERIES} times and never acked"


@dataclass(frozen=True, slots=True)
class BufferCounts:
    """Where every appended trace went: delivered == pending + dead_lettered + sum(acked.values()) + trimmed."""

    delivered: int  # appended since the stream was made; a trace sent twice counts once
    pending: int  # not acked yet: never read, or read by a consumer that has not finished
    dead_lettered: int  # could not be decoded, or was handed out MAX_DELIVERIES times and never acked; bytes kept
    acked: Mapping[str, int]  # outcome -> count
    trimmed: int  # removed by size or age before anybody acked them
    bytes: int  # payload bytes in the stream now
    entries: int = 0  # entries in the stream now, acked ones included


class TraceBuffer(Protocol):
    """A durable stream of traces with one consumer group. Reading removes nothing; ack only ends pending."""

    def append(self, traces: Sequence[DraftTrace]) -> list[str]:
        """Append and return the entry ids; then trim by bytes and by age, oldest first. All or nothing.

        A trace whose trace_id the stream holds already, or that comes twice in `traces`, is not stored again: the id
        of the entry that holds it is returned, and nothing is counted. So who lost a reply may append once more.
        """
        ...

    def claim(
        self, consumer: str, max_traces: int, before_opening: Callable[[Sequence[str]], object] | None = None
    ) -> list[TraceEntry]:
        """Return up to `max_traces` entries that `consumer` must now ack, oldest first; [] when there are none.

        Removes entries beyond the age bound first. Takes entries that anybody, `consumer` included, left pending
        longer than the configured idle time before new ones. Bytes that cannot be decoded, and entries handed out
        MAX_DELIVERIES times already, go to the dead letters and are not returned. Does not block.

        `before_opening` is told the ids before any of them is decoded, which may be what a reader dies of. What it
        raises leaves them pending.
        """
        ...

    def resume(self, consumer: str) -> None:
        """Let the next claims of `consumer` begin with what it holds and has not acked, without any idle time.

        For a consumer that gave up half-way and starts again; the claims take these entries oldest first, before all
        others, each once per call of `resume`. Reaches for nothing and raises nothing.
        """
        ...

    def forgive(self, entry_ids: Sequence[str]) -> int:
        """Count one delivery less for each of these entries that is pending; return how many were.

        For a reader that gave up through no fault of theirs. Whoever holds them holds them still, as long as before.
        Who lost a reply and asks again has another one forgiven; none falls below zero.
        """
        ...

    def ack(self, entry_ids: Sequence[str], outcome: str) -> int:
        """End pending for these entries and count `outcome` for each that was pending; return how many were."""
        ...

    def replay(self, max_traces: int, acked_only: bool = False) -> Iterator[TraceEntry]:
        """Yield the newest `max_traces` traces still in the stream, oldest first, consuming nothing.

        `acked_only` leaves out entries that are pending, not read yet or dead letters. Undecodable entries are
        skipped (claim is what dead-letters them).
        """
        ...

    def counts(self) -> BufferCounts:
        """Where every appended trace is now."""
        ...

    def dead_letters(self, max_letters: int) -> list[tuple[str, bytes]]:
        """The newest dead letters as (reason, raw bytes), oldest first."""
        ...


class VersionBoard(Protocol):
    """An append-only list of version events, with heartbeats and leases beside it."""

    def next_number(self) -> int:
        """Reserve a version number: 0 first, never twice."""
        ...

    def register(self, version: DraftVersion, by: str, why: str) -> BoardEvent:
        """Append the candidate event of a new version. BoardConflict when the number stands already."""
        ...

    def move(
        self, number: int, state: VersionState, by: str, why: str, replica: str = "", was: VersionState | None = None
    ) -> BoardEvent:
        """Append one change of state; a canary is one on `replica` alone.

        BoardConflict, and no change, when the state does not allow it, is another than `was`, or another version is
        canary.
        """
        ...

    def roll_back(self, by: str, why: str, number: int | None = None, was: VersionState | None = None) -> BoardState:
        """Take the newest step back at once: the canary to rolled_back; without one, live too, and previous to live.

        BoardConflict, and no change, when there is no canary and no previous version, or when `number` is given and
        is neither live nor canary, or not in the state `was`: who refuses a version must not take another one down.
        A version brought back to live ends the canary of another, as every version that goes live does.
        """
        ...

    def read(self) -> BoardState:
        """Fold all events."""
        ...

    def events(self, after_id: str = "", wait_s: float = 0.0) -> list[BoardEvent]:
        """Events behind `after_id`, oldest first; all with an empty id.

        When there are none, blocks up to `wait_s`, at most MAX_WAIT_S, until there is one.
        """
        ...

    def beat(self, member: str, reading: Mapping[str, object], ttl_s: float) -> None:
        """Publish a member's reading (JSON values); its heart beats until `ttl_s` seconds after its last beat."""
        ...

    def heartbeats(self) -> Mapping[str, Mapping[str, object]]:
        """Last readings of the members still beating."""
        ...

    def last_reading(self, member: str) -> Mapping[str, object]:
        """What a member said last, beating or not, up to LAST_READING_S behind it; empty when nothing is known."""
        ...

    def lease(self, name: str, ttl_s: float) -> AbstractContextManager[Lease]:
        """Hold `name` alone for the body: a true Lease when it was free, a false one (at once) when somebody holds it.

        The body may take longer than `ttl_s`: the lease is renewed while it runs. A holder that dies frees the name
        after `ttl_s`; one that could not renew for so long (suspended, cut off) has lost it, and Lease.is_held says
        so. A lost lease ends quietly and leaves the next holder's alone.
        """
        ...
