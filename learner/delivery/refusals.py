"""Refused candidates: by the gate, or because a learner died before it carried out the gate's verdict."""

import logging

from ...buffer.base import VersionBoard
from ...buffer.errors import BoardConflict
from ...buffer.version import VersionState

_log = logging.getLogger(__name__)

#: The author of a learner's board events; operators and replicas have their own names.
LEARNER = "learner"


def refuse(board: VersionBoard, number: int, why: str) -> None:
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
            refuse(board, number, "its learner stopped before the gate's verdict was carried out")
