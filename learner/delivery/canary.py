"""Where a version that passed the gate drafts first, and when its canary has lasted too long."""

import logging
import time
from collections.abc import Callable, Mapping

from ...buffer.base import VersionBoard
from ...buffer.errors import BoardConflict
from ...buffer.version import BoardState, VersionState
from ..state import LEARNER

_log = logging.getLogger(__name__)


def start_canary_or_go_live(board: VersionBoard, number: int, why: str, *, with_canary: bool) -> None:
    """Move a candidate to canary on one replica, or to live at once where there is no other one to hold it against.

    Conflicts are logged.
    """
    replica = _replica_for(board, number) if with_canary else ""
    state = VersionState.CANARY if replica else VersionState.LIVE
    try:
        board.move(number, state, LEARNER, why, replica)
    except BoardConflict as conflict:
        _log.warning("version %d was moved by somebody else: %s", number, conflict)


class CanaryLimit:
    """Rolls a canary back that stays undecided for too long: its replica died, or has too little traffic.

    The time is counted from when this object saw the canary first, on a clock that nobody sets: the one that dates the
    board's events may be wrong by a day, or jump. So a restarted learner gives a canary its time once more.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._seen: tuple[int, float] | None = None  # number, and when it became canary by the board's word
        self._seen_at = 0.0

    def end_overdue(self, board: VersionBoard, state: BoardState) -> None:
        """Look at the canary of `state`; roll it back on the board when it is overdue."""
        if state.canary is None:
            return
        row, now = state.rows[state.canary], self._clock()
        if self._seen != (state.canary, row.changed_at):
            self._seen, self._seen_at = (state.canary, row.changed_at), now
        if now - self._seen_at < self._limit_s:
            return
        why = f"canary on {row.replica} undecided after {self._limit_s:g} s"
        try:
            board.roll_back(LEARNER, why, state.canary, VersionState.CANARY)
        except BoardConflict as conflict:
            _log.warning("canary %d was moved by somebody else: %s", state.canary, conflict)


def _replica_for(board: VersionBoard, number: int) -> str:
    """By turns one of the replicas that serve the live version, or the only one where it alternates; else empty.

    A replica that is about to take the live version over counts as another one: it will be the live arm.
    """
    live = board.read().live
    ready = {
        member.removeprefix("replica:"): reading
        for member, reading in sorted(board.heartbeats().items())
        if member.startswith("replica:") and (reading.get("capture"), reading.get("swap")) == ("on", "on")
    }
    able = [name for name, reading in ready.items() if _has_served(reading, live)]
    coming = sum(reading.get("draft_version", live) != live for reading in ready.values())
    if len(able) + coming < 2:
        able = [name for name, reading in ready.items() if _alternates(reading)] if len(ready) == 1 else []
    return able[number % len(able)] if able else ""


def _alternates(reading: Mapping[str, object]) -> bool:
    window_s = reading.get("canary_window_s")
    return isinstance(window_s, int | float) and window_s > 0


def _has_served(reading: Mapping[str, object], live: int | None) -> bool:
    """Whether a replica has ended requests with the live version: a standby judges nothing."""
    told = reading.get("stretches")
    return isinstance(told, Mapping) and told.get("version") == live and bool(told.get("ended"))
