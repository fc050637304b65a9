"""Where a version that passed the gate drafts first, and when its canary has lasted too long."""

import logging
from collections.abc import Mapping

from ..buffer.base import VersionBoard
from ..buffer.errors import BoardConflict
from ..buffer.version import BoardState, VersionState
from .standing import LEARNER

_log = logging.getLogger(__name__)


def let_on(board: VersionBoard, number: int, why: str, *, with_canary: bool) -> None:
    """Move a candidate to canary on one replica, or to live at once with fewer than two; conflicts are logged."""
    replica = _replica_for(board, number) if with_canary else ""
    state = VersionState.CANARY if replica else VersionState.LIVE
    try:
        board.move(number, state, LEARNER, why, replica)
    except BoardConflict as conflict:
        _log.warning("version %d was moved by somebody else: %s", number, conflict)


def end_overdue(board: VersionBoard, state: BoardState, limit_s: float, now: float) -> None:
    """Roll a canary back that was not decided in `limit_s` seconds: its replica died, or has too little traffic."""
    if state.canary is None:
        return
    row = state.rows[state.canary]
    if now - row.changed_at < limit_s:
        return
    why = f"canary on {row.replica} undecided after {limit_s:g} s"
    try:
        board.roll_back(LEARNER, why, state.canary, VersionState.CANARY)
    except BoardConflict as conflict:
        _log.warning("canary %d was moved by somebody else: %s", state.canary, conflict)


def _replica_for(board: VersionBoard, number: int) -> str:
    """By turns one of the replicas that serve the live version; empty when there is none to hold it against."""
    live = board.read().live
    able = sorted(
        member.removeprefix("replica:")
        for member, reading in board.heartbeats().items()
        if member.startswith("replica:") and _serves(reading, live)
    )
    return able[number % len(able)] if len(able) > 1 else ""


def _serves(reading: Mapping[str, object], live: int | None) -> bool:
    """Whether a replica swaps, captures, and has ended requests with the live version: a standby judges nothing."""
    told = reading.get("stretches")
    has_served = isinstance(told, Mapping) and told.get("version") == live and bool(told.get("ended"))
    return has_served and (reading.get("capture"), reading.get("swap")) == ("on", "on")
