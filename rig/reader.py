"""Reads one speculator from outside: the heartbeats of its replica and learner, its versions, and its traces."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..buffer.board.member_status import MemberStatus
from ..buffer.board.version_board import VersionBoard
from ..buffer.board.weights_file import weights_file
from ..buffer.stream.trace_buffer import TraceBuffer
from ..dashboards.tables import VersionLine, version_lines
from ..policies.readings.ratio_sums import RatioSums
from ..policies.readings.served_drafts import served_drafts
from .traffic import Served, longest_gap_ms

_KEPT = ("learned", "held_out", "rested")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAccount:
    """The traces that were captured, by what became of each. Counts of the server are None where it has not said."""

    captured: int | None = None
    delivered: int | None = None
    dropped: Mapping[str, int] | None = None  # by the server: reason -> traces
    silent_s: float = 0.0  # since the server said so; 0 while it beats
    learned: int = 0
    held_out: int = 0
    rested: int = 0
    pending: int = 0
    set_aside: Mapping[str, int] = field(default_factory=dict)  # delivered, with any other outcome: reason -> traces

    @property
    def arrived(self) -> int:
        """Traces that Redis has had: the sum of the fields after `silent_s`."""
        return self.learned + self.held_out + self.rested + self.pending + sum(self.set_aside.values())

    @property
    def is_balanced(self) -> bool:
        """Return whether captured == delivered + dropped, and delivered == arrived."""
        if self.captured is None or self.delivered is None or self.dropped is None:
            return False
        return self.delivered == self.arrived and self.captured == self.delivered + sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class Swap:
    """One swap as the replica reported it."""

    number: int
    commit_ms: float
    running: int  # requests in flight
    at: float  # unix seconds, when the commit was done

    def stall_ms(self, results: Sequence[Served]) -> float | None:
        """Longest wait for a token among requests that streamed while the scheduler copied the weights.

        None: no request did.
        """
        return self._longest_gap_ms(results, self.at)

    def quiet_ms(self, results: Sequence[Served], next_at: float) -> float | None:
        """The same wait over a time as long half-way to `next_at`, unix seconds, when the next swap or the end came."""
        return self._longest_gap_ms(results, (self.at + next_at) / 2.0)

    def _longest_gap_ms(self, results: Sequence[Served], end_at: float) -> float | None:
        return longest_gap_ms(results, (end_at - self.commit_ms / 1000.0, end_at))


class SpeculatorReader:
    """A speculator with one replica and one learner. Every call reads from Redis; none writes."""

    def __init__(self, buffer: TraceBuffer, board: VersionBoard, replica: str, learner: str) -> None:
        self._buffer = buffer
        self._board = board
        self._replica = f"replica:{replica}"
        self._learner = f"learner:{learner}"
        self._swaps: dict[tuple[int, float], Swap] = {}  # seen so far, by number and time

    def replica_status(self) -> MemberStatus:
        """Return the server's last heartbeat; one in which nothing is known when there is none."""
        return self._board.heartbeats().get(self._replica, MemberStatus())

    def learner_status(self) -> MemberStatus:
        """Return the learner's last heartbeat; one in which nothing is known when there is none."""
        return self._board.heartbeats().get(self._learner, MemberStatus())

    def traces(self) -> TraceAccount:
        """Return where the traces are; what the server counts is of its last heartbeat, even where that has expired."""
        server = self._board.members().get(self._replica)
        counts = self._buffer.counts()
        said = server.said.traces if server else None
        other = {outcome: count for outcome, count in counts.acked.items() if outcome not in _KEPT}
        return TraceAccount(
            captured=said.captured if said else None,
            delivered=said.delivered if said else None,
            dropped=said.dropped if said else None,
            silent_s=0.0 if server is None or server.is_alive else self._board.now() - server.last_seen_at,
            learned=counts.acked.get("learned", 0),
            held_out=counts.acked.get("held_out", 0),
            rested=counts.acked.get("rested", 0),
            pending=counts.pending,
            set_aside={**other, "trimmed": counts.trimmed, "dead_lettered": counts.dead_lettered},
        )

    def live(self) -> int | None:
        """Number of the live version; None before there is one."""
        return self._board.read().live

    def has_canary(self) -> bool:
        """Return whether a version is on trial; traces wait until it is decided, and only traffic decides it."""
        return self._board.read().canary is not None

    def learnt_weights(self) -> Path | None:
        """Folder of the live version's weights; None while that is the draft which the server was started with."""
        state = self._board.read()
        version = None if state.live is None else state.rows[state.live].version
        return None if version is None or version.parent is None else weights_file(version.weights_uri).parent

    def served(self) -> Mapping[int, RatioSums]:
        """Return the accepted drafts of the requests that ended by version, as the replica counts them."""
        drafts = served_drafts(self._board.history(self._replica))
        return {number: served.sums for number, served in drafts.items()}

    def versions(self, served: Mapping[int, RatioSums] | None = None) -> list[VersionLine]:
        """All versions, oldest first; `served` is what each had accepted, by number, where that is known."""
        return version_lines(self._board.read(), served)

    def swaps(self) -> list[Swap]:
        """Swaps the replica made, oldest first: of its heartbeats at this call and the calls before.

        A heartbeat lists the newest, as many as it has room for: call it now and then, and none is missed.
        """
        for swap in self.replica_status().swaps:
            self._swaps[swap.number, swap.at] = Swap(swap.number, swap.commit_ms, swap.running, swap.at)
        return [*self._swaps.values()]

    def is_learning(self, min_new_traces: int) -> bool:
        """Return whether a learning round runs, or enough traces wait for one to start."""
        return self.learner_status().kind == "learning" or self._buffer.counts().pending >= min_new_traces


def drain_check(status: Callable[[], MemberStatus], clock: Callable[[], float] = time.time) -> Callable[[], bool]:
    """Return a check to be polled: whether a replica has delivered all it served before this call.

    `status` reads the replica's last heartbeat. The first heartbeat after this call may report a turn that began
    before it; the check therefore waits for a later one.
    """
    asked_at = clock()
    first_at = 0.0

    def is_drained() -> bool:
        nonlocal first_at
        now = status()
        if now.at is None or now.at <= asked_at:
            return False
        first_at = first_at or now.at
        return now.at > first_at and not now.open and not now.queued

    return is_drained
