"""DraftVersion: one set of draft weights, and the events that move it through its life.

    candidate -> refused | canary -> live -> retired

A canary drafts on one replica alone; candidates may also go live at once. Canary and live may be rolled back, and a
rollback of the live version brings the retired one before it back. At most one version is canary and one is live; a
version that goes live ends the canary of another, for that one was compared with what is live no more.

The state of a version is never stored: it is a fold of the board's events, oldest first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from .errors import BoardConflict


class VersionState(StrEnum):
    """Where a version stands; MOVES says what may follow."""

    CANDIDATE = "candidate"
    REFUSED = "refused"
    CANARY = "canary"
    LIVE = "live"
    RETIRED = "retired"
    ROLLED_BACK = "rolled_back"


#: State -> states it may move to. None is the state of a number the board has not seen.
MOVES: Mapping[VersionState | None, frozenset[VersionState]] = MappingProxyType(
    {
        None: frozenset({VersionState.CANDIDATE}),
        VersionState.CANDIDATE: frozenset({VersionState.REFUSED, VersionState.CANARY, VersionState.LIVE}),
        VersionState.CANARY: frozenset({VersionState.LIVE, VersionState.ROLLED_BACK}),
        VersionState.REFUSED: frozenset({VersionState.LIVE}),
        VersionState.LIVE: frozenset({VersionState.RETIRED, VersionState.ROLLED_BACK}),
        VersionState.RETIRED: frozenset({VersionState.LIVE}),
        VersionState.ROLLED_BACK: frozenset({VersionState.LIVE}),
    }
)


#: Among DraftVersion.scores: what a round of held-out traffic yields with this draft, 1 + accepted drafts.
HELD_OUT_SCORE = "holdout_accept_length"


@dataclass(frozen=True, slots=True)
class DraftVersion:
    """What a draft is, fixed at publication; what became of it stands in the board's events."""

    number: int
    parent: int | None  # None: the draft the server was started with
    target: str
    target_version: str
    drafter: str  # "eagle3"
    weights_uri: str  # file:// URI of the folder that holds model.safetensors and config.json
    sha256: str  # of model.safetensors, lower-case hex
    objective: str
    window: tuple[str, str]  # first and last stream id learnt from; ("", "") for the initial draft
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BoardEvent:
    """One change of state. `version` rides on the candidate event alone; `event_id` is given by the board."""

    number: int
    state: VersionState
    by: str  # who: "learner", "operator:<name>", "replica:<name>"
    why: str
    at: float  # unix seconds
    version: DraftVersion | None = None
    event_id: str = ""
    replica: str = ""  # where a canary drafts; empty in every other state


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One version with its state and the last word said about it."""

    version: DraftVersion
    state: VersionState
    why: str
    changed_at: float  # unix seconds
    replica: str = ""  # where a canary drafts


@dataclass(frozen=True, slots=True)
class BoardState:
    """The fold: rows by number, which is live, which one a rollback would return to, and which is canary."""

    rows: Mapping[int, BoardRow]
    live: int | None
    previous: int | None
    last_event_id: str
    canary: int | None = None

    def drafts_on(self, replica: str) -> int | None:
        """The version that `replica` is to draft with; None while none is live."""
        if self.canary is not None and self.rows[self.canary].replica == replica:
            return self.canary
        return self.live


def fold(events: Iterable[BoardEvent]) -> BoardState:
    """Replay `events`, oldest first. A new live version retires the one before it.

    Raises BoardConflict when an event does not follow from the state before it.
    """
    rows: dict[int, BoardRow] = {}
    served: list[int] = []  # numbers that went live, oldest first, rolled back ones removed
    last = ""
    for event in events:
        _apply(rows, served, event)
        last = event.event_id or last
    live = next((n for n in reversed(served) if rows[n].state is VersionState.LIVE), None)
    retired = [n for n in served if n != live and rows[n].state is VersionState.RETIRED]
    return BoardState(MappingProxyType(rows), live, retired[-1] if retired else None, last, _canary(rows))


def _apply(rows: dict[int, BoardRow], served: list[int], event: BoardEvent) -> None:
    row = rows.get(event.number)
    allowed = MOVES[row.state if row else None]
    if event.state not in allowed or (row is None and event.version is None):
        state = row.state if row else "unknown"
        raise BoardConflict(
            f"version {event.number} is {state}: got {event.state}, expected one of {[*map(str, sorted(allowed))]}"
        )
    version = row.version if row else event.version
    assert version is not None  # noqa: S101 - ruled out above
    if event.state is VersionState.LIVE:
        _retire_live(rows, event)
        served[:] = [n for n in served if n != event.number] + [event.number]
    if event.state is VersionState.ROLLED_BACK and event.number in served:
        served.remove(event.number)
    _check_replica(rows, event)
    rows[event.number] = BoardRow(version, event.state, event.why, event.at, event.replica)


def _retire_live(rows: dict[int, BoardRow], event: BoardEvent) -> None:
    ends = {
        VersionState.LIVE: (VersionState.RETIRED, f"replaced by version {event.number}"),
        VersionState.CANARY: (VersionState.ROLLED_BACK, f"version {event.number} went live meanwhile"),
    }
    for number, row in rows.items():
        if row.state in ends and number != event.number:
            state, why = ends[row.state]
            rows[number] = replace(row, state=state, why=why, changed_at=event.at, replica="")


def _check_replica(rows: Mapping[int, BoardRow], event: BoardEvent) -> None:
    is_canary, other = event.state is VersionState.CANARY, _canary(rows)
    if is_canary and other is not None:
        raise BoardConflict(f"version {event.number} as canary: got canary {other} at work, expected none")
    if is_canary != bool(event.replica):
        expected = "the one it drafts on" if is_canary else "none, for it drafts on all or on none"
        raise BoardConflict(
            f"version {event.number} as {event.state}: got replica {event.replica!r}, expected {expected}"
        )


def _canary(rows: Mapping[int, BoardRow]) -> int | None:
    return next((number for number, row in rows.items() if row.state is VersionState.CANARY), None)
