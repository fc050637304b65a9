"""The counters of a replica: what its scheduler process reported, and what its courier counts beside that."""

import logging
from collections.abc import Iterable

import msgspec

from ...buffer.board.counters import Counters, counters_of
from ...buffer.board.member_status import MemberStatus
from ...buffer.board.version_board import VersionBoard
from ..watch.draft_turns import DraftTurns
from ..watch.served_counts import ServedCounts
from ..wire.counts import CaptureCounts
from ..wire.request_forward import RequestForward
from .redis_clock import RedisClock

log = logging.getLogger(__name__)


class ReplicaCounters:
    """Puts them together for the heartbeat; for the courier's thread.

    They are of one boot of the server. A courier that takes the place of another one goes on from the last heartbeat of
    that one; what that one had counted since, at most a second of rounds, is in no counter.
    """

    def __init__(self, counts: CaptureCounts, redis_clock: RedisClock | None = None) -> None:
        self._redis_clock = redis_clock
        self._counts = counts
        self._served = ServedCounts()
        self._turns = DraftTurns()
        self._before: Counters | None = None  # of the last heartbeat, until it is known whether it was of this boot
        self._has_read = False

    def add(self, forward: RequestForward, now: float) -> None:
        """Count one forward that has come."""
        self._served.add(forward)
        self._turns.add(forward, now)

    def lose(self, request_ids: Iterable[str]) -> None:
        """A forward of these requests is missing."""
        self._served.lose(request_ids)

    def look(self, board: VersionBoard, member: str, now: float) -> None:
        """Read the last heartbeat of `member`, once, before the first beat replaces it, and now and then Redis' clock.

        May raise as boards do; then call again.
        """
        if self._redis_clock is not None:
            self._redis_clock.look(now)
        if not self._has_read:
            self._read_before(board, member)

    def fill(self, said: MemberStatus, now: float) -> None:
        """Complete what the scheduler process said for the heartbeat. No counters until that has come once."""
        said.clock_offset_s = self._redis_clock.offset_s if self._redis_clock else None
        said.swaps = self._turns.told(said.swaps)
        scheduler = counters_of(said.counters)
        said.counters = None
        if scheduler is None or not self._has_read:
            return
        if self._before is not None and self._before.boot == scheduler.boot and self._before.served is not None:
            self._served.adopt(self._before.served)
        self._before = None
        traces = self._counts.since_boot(said.skipped)
        said.counters = msgspec.structs.replace(scheduler, at=now, served=self._served.counters(), traces=traces)

    def _read_before(self, board: VersionBoard, member: str) -> None:
        said = board.last_status(member)
        if said.unreadable:
            log.warning("paceline: counters start at zero; of the last status of %s: %s", member, said.unreadable)
        self._before = counters_of(said.counters)
        self._has_read = True
