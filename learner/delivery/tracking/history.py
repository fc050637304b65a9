"""What happened to every draft, by whom and why, from the board's events."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ....buffer.board.reason import Why
from ....buffer.board.version import BoardEvent, BoardFold, VersionState


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a draft's state."""

    state: VersionState
    by: str
    why: Why
    at: float  # unix seconds


def histories(events: Iterable[BoardEvent]) -> dict[int, list[Change]]:
    """Draft -> its changes, oldest first, those included that another draft's event brings about. O(events).

    `events` are all of a board, oldest first; BoardConflict when one does not follow.
    """
    found: dict[int, list[Change]] = defaultdict(list)
    board = BoardFold()
    for event in events:
        touched = {event.number, board.live, board.canary} - {None}
        before = {number: board.rows.get(number) for number in touched if number is not None}
        board.extend([event])
        for number in sorted(before):
            row = board.rows[number]
            if row != before[number]:
                found[number].append(Change(row.state, event.by, row.why, row.changed_at))
    return dict(found)


def went_live_at(changes: Iterable[Change]) -> float | None:
    """Unix seconds at which a draft first went live; None where it never did."""
    return next((change.at for change in changes if change.state is VersionState.LIVE), None)
