"""Moves of candidates on the board: refused, canary on one replica, or live; and the end of a canary undecided."""

import logging
import time
from collections.abc import Callable

from ...buffer.board.member_status import MemberStatus
from ...buffer.board.reason import Reason, ReasonCode, because
from ...buffer.board.version import BoardState, VersionState
from ...buffer.board.version_board import VersionBoard
from ...buffer.errors import BoardConflict

_log = logging.getLogger(__name__)

#: The author of a learner's board events; operators and replicas have their own names.
LEARNER = "learner"


def refuse(board: VersionBoard, number: int, why: Reason) -> None:
    """Move a candidate to refused; a conflict with another move is logged, and that move stays."""
    try:
        board.move(number, VersionState.REFUSED, LEARNER, why)
    except BoardConflict as conflict:
        _log.warning("version %d was not refused, because somebody else moved it: %s", number, conflict)


def refuse_undecided(board: VersionBoard) -> None:
    """Refuse the candidates of a learner that died before carrying out the gate's verdict; their traces come again."""
    state = board.read()
    published = {event.number for event in board.events() if event.version is not None and event.by == LEARNER}
    for number in sorted(published):
        if state.rows[number].state is VersionState.CANDIDATE:
            refuse(board, number, because(ReasonCode.LEARNER_STOPPED))


def start_canary_or_go_live(
    board: VersionBoard, number: int, why: Reason, *, with_canary: bool, must_canary: bool = False
) -> None:
    """Move a candidate to canary on one replica, or to live at once where no other replica can be compared with it.

    With `must_canary` it is refused instead of going live untried. A conflict with another move is logged, and that
    move stays.
    """
    replica = _replica_for(board, number) if with_canary else ""
    if must_canary and not replica:
        refuse(board, number, why.but(ReasonCode.NO_CANARY))
        return
    state = VersionState.CANARY if replica else VersionState.LIVE
    try:
        board.move(number, state, LEARNER, why, replica=replica)
    except BoardConflict as conflict:
        _log.warning("version %d did not become %s, because somebody else moved it: %s", number, state.value, conflict)


class CanaryLimit:
    """Rolls back a canary that stays undecided for too long: its replica died, or has too little traffic.

    The time counts from when this object first saw the canary, on a monotonic clock: the wall clock that dates the
    board's events may jump, or be wrong by a day. So a restarted learner gives a canary its whole time again.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._seen: tuple[int, float] | None = None  # number, and when it became canary according to the board
        self._seen_at = 0.0

    def end_overdue(self, board: VersionBoard, state: BoardState) -> None:
        """Roll back the canary of `state`, if there is one and it is overdue."""
        if state.canary is None:
            return
        row = state.rows[state.canary]
        now = self._clock()
        if self._seen != (state.canary, row.changed_at):
            self._seen = (state.canary, row.changed_at)
            self._seen_at = now
        if now - self._seen_at < self._limit_s:
            return
        why = because(ReasonCode.CANARY_OVERDUE, replica=row.replica, limit_s=self._limit_s)
        try:
            board.roll_back(LEARNER, why, state.canary, VersionState.CANARY)
        except BoardConflict as conflict:
            _log.warning("canary %d was not rolled back, because somebody else moved it: %s", state.canary, conflict)


def _replica_for(board: VersionBoard, number: int) -> str:
    """Return, in turn, one of the replicas that serve the live version; the only one where it alternates; else empty.

    A replica that is about to swap to the live version counts as another one to compare with.
    """
    live = board.read().live
    ready = {
        member.removeprefix("replica:"): said
        for member, said in sorted(board.heartbeats().items())
        if member.startswith("replica:") and (said.capture, said.swap) == ("on", "on")
    }
    able = [name for name, said in ready.items() if _has_served(said, live)]
    coming = sum(said.draft_version not in {None, live} for said in ready.values())
    if len(able) + coming < 2:
        able = [name for name, said in ready.items() if said.canary_window_s > 0] if len(ready) == 1 else []
    return able[number % len(able)] if able else ""


def _has_served(said: MemberStatus, live: int | None) -> bool:
    """Return whether a replica has ended requests with the live version: a standby has nothing to compare with."""
    return said.stretches is not None and said.stretches.version == live and bool(said.stretches.ended)
