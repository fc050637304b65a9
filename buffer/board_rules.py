"""What may be written on a version board: pure functions from its state to the next events."""

from collections.abc import Callable

from .errors import BoardConflict
from .version import BoardEvent, BoardState, DraftVersion, VersionState

#: From the folded state and the time (unix seconds) to the events to append; BoardConflict when they do not fit.
Decision = Callable[[BoardState, float], list[BoardEvent]]


def register_event(version: DraftVersion, by: str, why: str) -> Decision:
    """Decide the candidate event of a new version."""
    return lambda _, at: [BoardEvent(version.number, VersionState.CANDIDATE, by, why, at, version)]


def move_event(
    number: int, state: VersionState, by: str, why: str, replica: str = "", was: VersionState | None = None
) -> Decision:
    """Decide one change of state."""

    def decide(board: BoardState, at: float) -> list[BoardEvent]:
        _expect(board, number, was)
        return [BoardEvent(number, state, by, why, at, replica=replica)]

    return decide


def rollback_events(by: str, why: str, number: int | None, was: VersionState | None = None) -> Decision:
    """Decide the events that take the canary off, or the live version off and the previous one back on."""

    def decide(state: BoardState, at: float) -> list[BoardEvent]:
        _expect(state, number, was)
        if state.canary is not None and number in {None, state.canary}:
            return [BoardEvent(state.canary, VersionState.ROLLED_BACK, by, why, at)]
        if number is not None and state.live != number:
            at_work = f"live {state.live} and canary {state.canary}"
            raise BoardConflict(f"rollback of version {number}: got {at_work}, expected {number} to be one of them")
        if state.live is None or state.previous is None:
            raise BoardConflict(f"rollback: got live {state.live} and previous {state.previous}, expected both")
        return [
            BoardEvent(state.live, VersionState.ROLLED_BACK, by, why, at),
            BoardEvent(state.previous, VersionState.LIVE, by, why, at),
        ]

    return decide


def _expect(state: BoardState, number: int | None, was: VersionState | None) -> None:
    row = state.rows.get(number) if number is not None else None
    if was is not None and (row is None or row.state is not was):
        raise BoardConflict(f"version {number}: got {row.state if row else 'unknown'}, expected {was}")
