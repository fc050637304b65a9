"""What may be written on a version board: pure functions from its state to the next events.

`at` is unix seconds. Each raises BoardConflict when what is asked does not fit the state; that an event follows from
the state is checked by the fold.
"""

from collections.abc import Callable
from itertools import pairwise

from ..errors import BoardConflict
from .reason import Why
from .version import BoardEvent, BoardState, DraftVersion, VersionState

#: One of the functions below with its request filled in: a board that loses a race calls it again with a newer state.
Decision = Callable[[BoardState, float], list[BoardEvent]]


def register_events(at: float, version: DraftVersion, by: str, why: Why) -> list[BoardEvent]:
    """The candidate event of a new version."""
    return [BoardEvent(number=version.number, state=VersionState.CANDIDATE, by=by, why=why, at=at, version=version)]


def move_events(
    board: BoardState,
    at: float,
    *,
    number: int,
    state: VersionState,
    by: str,
    why: Why,
    replica: str,
    was: VersionState | None,
) -> list[BoardEvent]:
    """The event that brings version `number` into `state`, if it is in the state `was`."""
    _expect_state(board, number, was)
    return [BoardEvent(number=number, state=state, by=by, why=why, at=at, replica=replica)]


def rollback_events(
    board: BoardState,
    at: float,
    *,
    by: str,
    why: Why,
    number: int | None,
    was: VersionState | None,
    to: int | None = None,
) -> list[BoardEvent]:
    """The events that end the canary, or end the live version and bring the previous one back.

    With `to`, one rollback of a live version after the other, until version `to` is live.
    """
    _expect_state(board, number, was)
    if to is None and board.canary is not None and number in {None, board.canary}:
        return [BoardEvent(number=board.canary, state=VersionState.ROLLED_BACK, by=by, why=why, at=at)]
    if number is not None and board.live != number:
        in_use = f"live {board.live} and canary {board.canary}"
        raise BoardConflict(f"rollback of version {number}: got {in_use}, expected {number} to be one of them")
    if board.live is None:
        raise BoardConflict("rollback: got no live version, expected one to roll back")
    if board.previous is None:
        raise BoardConflict(f"rollback of live version {board.live}: got none before it, expected one to go back to")
    events = []
    for ended, back in pairwise([board.live, *_back_to(board, board.previous if to is None else to)]):
        events.append(BoardEvent(number=ended, state=VersionState.ROLLED_BACK, by=by, why=why, at=at))
        events.append(BoardEvent(number=back, state=VersionState.LIVE, by=by, why=why, at=at))
    return events


def _back_to(board: BoardState, to: int) -> tuple[int, ...]:
    """What is live after each of the rollbacks that end with version `to` live."""
    if to not in board.earlier:
        raise BoardConflict(
            f"rollback to version {to}: got {list(board.earlier)} to return to, expected {to} among them"
        )
    return board.earlier[: board.earlier.index(to) + 1]


def _expect_state(board: BoardState, number: int | None, was: VersionState | None) -> None:
    row = board.rows.get(number) if number is not None else None
    if was is not None and (row is None or row.state is not was):
        raise BoardConflict(f"version {number}: got {row.state if row else 'unknown'}, expected {was}")
