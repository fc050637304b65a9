"""DraftVersion: one set of draft weights, and the events that move it through its life.

    candidate -> refused | canary -> live -> retired

A canary drafts on one replica alone; candidates may also go live at once. Canary and live may be rolled back, and a
rollback of the live version brings back the version that was live before it. At most one version is canary and one is
live; a version that goes live ends the canary of another, because it was compared with a version that has retired.

The state of a version is never stored: it is a fold of the board's events, oldest first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from ..errors import BoardConflict
from .reason import ReasonCode, Why, because

# Names of the figures in `DraftVersion.scores` that have a reader; the gate writes others.

#: Tokens per verify round, 1 + accepted drafts, of the traffic that this draft was trained on last, with the weights it
#: had before.
JUDGED_SCORE = "judged_accept_length"
#: The same of its own weights, on requests that had come when it was published and that it had not learnt; and its
#: standard error, prompts drawn as wholes. Both are absent where these were few, and of a draft that was refused.
PREDICTED_SCORE = "predicted_accept_length"
PREDICTED_STANDARD_ERROR = "predicted_standard_error"


class VersionState(StrEnum):
    """Where a version is in its life; MOVES says what may follow."""

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


#: Hint appended to errors about events that paceline did not write.
NOT_OURS = "paceline writes no such event: if something else did, take it off with XDEL"

#: Stands for the labels that a count by label does not name, for their number is bounded. No label is this.
OTHER_LABELS = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedOn:
    """The requests that a verdict was judged on, beside the newest traffic at that time.

    Counts are requests by label (label.py); "" is of those whose clients named none, OTHER_LABELS of further labels.
    """

    labels: Mapping[str, int]
    newest_labels: Mapping[str, int]  # of the newest traffic; empty when there was none
    median_age_s: float | None = None  # at judgement; None: no request's time is known
    oldest_age_s: float | None = None
    undated: int = 0  # requests of unknown age, which the two ages leave out
    #: Requests by the version of the target that verified them; one that went on over an update counts for each.
    targets: Mapping[str, int] = field(default_factory=dict)
    drafts: Mapping[int, int] = field(default_factory=dict)  # the same by the version that drafted them

    @property
    def requests(self) -> int:
        """How many were judged."""
        return sum(self.labels.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVersion:
    """What a draft is, fixed at publication; what became of it is in the board's events."""

    number: int
    parent: int | None  # None: the draft the server was started with
    target: str
    target_version: str  # the newest when this was published; empty: no trace had named one
    drafter: str  # "eagle3", "dflash", or "mtp": a layer of the target's own checkpoint
    #: Of the folder that holds model.safetensors and config.json: file://, or below PACELINE_VERSIONS_URI.
    weights_uri: str
    sha256: str  # of model.safetensors, lower-case hex
    objective: str
    trained_on: tuple[str, str]  # first and last stream id learned from; ("", "") for the initial draft
    scores: Mapping[str, float] = field(default_factory=dict)  # by the names in scores.py
    judged_on: JudgedOn | None = None  # None: nothing was judged
    #: Target versions whose traces it was trained on in its last learning round, oldest first; empty: not known.
    trained_targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardEvent:
    """One change of state. Only the candidate event carries `version`; the board assigns `event_id`."""

    number: int
    state: VersionState
    by: str  # who: "learner", "operator:<name>", "replica:<name>"
    why: Why
    at: float  # unix seconds
    version: DraftVersion | None = None
    event_id: str = ""
    replica: str = ""  # where a canary drafts; empty in every other state


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRow:
    """One version with its state and the reason of its last change."""

    version: DraftVersion
    state: VersionState
    why: Why
    changed_at: float  # unix seconds
    replica: str = ""  # where a canary drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardState:
    """The fold: rows by number, which is live, which one a rollback would return to, and which is canary."""

    rows: Mapping[int, BoardRow]
    live: int | None
    previous: int | None
    last_event_id: str
    canary: int | None = None
    earlier: tuple[int, ...] = ()  # what one rollback after the other would return to; `previous` is the first

    @property
    def is_returned_to(self) -> bool:
        """Whether the live version was restored by a rollback (whose two events share time and reason)."""
        if self.live is None:
            return False
        live = self.rows[self.live]
        rolled_back = (row for row in self.rows.values() if row.state is VersionState.ROLLED_BACK)
        return any((row.changed_at, row.why) == (live.changed_at, live.why) for row in rolled_back)

    def drafts_on(self, replica: str) -> int | None:
        """The version that `replica` should draft with; None while none is live."""
        if self.canary is not None and self.rows[self.canary].replica == replica:
            return self.canary
        return self.live


def fold(events: Iterable[BoardEvent]) -> BoardState:
    """Apply `events`, oldest first, to an empty board. A new live version retires the one before it. O(events).

    Raises BoardConflict when an event does not follow from the state before it.
    """
    board = BoardFold()
    board.extend(events)
    return board.state()


@dataclass(slots=True, kw_only=True)
class BoardFold:
    """An incremental fold: long-lived servers, which read the board at every swap, apply only new events.

    An event that does not follow changes nothing, so that the fold can go on once it is off the board.
    """

    rows: dict[int, BoardRow] = field(default_factory=dict)
    served: dict[int, None] = field(default_factory=dict)  # in the order they went live, without rolled-back ones
    live: int | None = None
    canary: int | None = None
    last_event_id: str = ""

    def extend(self, events: Iterable[BoardEvent]) -> None:
        """Apply `events`, oldest first; BoardConflict at the first that does not follow."""
        for event in events:
            try:
                self._apply(event)
            except BoardConflict as conflict:
                if not event.event_id:
                    raise
                raise BoardConflict(f"board event {event.event_id}: {conflict}; {NOT_OURS}") from conflict

    def copy(self) -> "BoardFold":
        """An independent fold with the same state. O(versions)."""
        return replace(self, rows=dict(self.rows), served=dict(self.served))

    def _apply(self, event: BoardEvent) -> None:
        row = self.rows.get(event.number)
        _check_move(event, row)
        _check_replica(event, self.canary)
        version = row.version if row else event.version
        assert version is not None  # noqa: S101 - ruled out above
        if event.state is VersionState.LIVE:
            self._go_live(event)
        self._end_live_or_canary(event)
        if event.state is VersionState.CANARY:
            self.canary = event.number
        self.rows[event.number] = BoardRow(
            version=version, state=event.state, why=event.why, changed_at=event.at, replica=event.replica
        )
        self.last_event_id = event.event_id or self.last_event_id

    def state(self) -> BoardState:
        """The state after all events so far; later events do not change it."""
        earlier = tuple(n for n in reversed(self.served) if self.rows[n].state is VersionState.RETIRED)
        rows = MappingProxyType(dict(self.rows))
        previous = earlier[0] if earlier else None
        return BoardState(
            rows=rows,
            live=self.live,
            previous=previous,
            last_event_id=self.last_event_id,
            canary=self.canary,
            earlier=earlier,
        )

    def _go_live(self, event: BoardEvent) -> None:
        number = event.number
        self._end(self.live, VersionState.RETIRED, because(ReasonCode.REPLACED, by=number), event)
        if self.canary != number:
            self._end(self.canary, VersionState.ROLLED_BACK, because(ReasonCode.OVERTAKEN, by=number), event)
        self.served.pop(number, None)
        self.served[number] = None
        self.live = number
        self.canary = None

    def _end(self, number: int | None, state: VersionState, why: Why, event: BoardEvent) -> None:
        if number is not None:
            self.rows[number] = replace(self.rows[number], state=state, why=why, changed_at=event.at, replica="")

    def _end_live_or_canary(self, event: BoardEvent) -> None:
        if event.state is VersionState.ROLLED_BACK:
            self.served.pop(event.number, None)
        if event.state in {VersionState.RETIRED, VersionState.ROLLED_BACK}:
            self.live = None if self.live == event.number else self.live
            self.canary = None if self.canary == event.number else self.canary


def _check_move(event: BoardEvent, row: BoardRow | None) -> None:
    allowed = MOVES[row.state if row else None]
    if event.state not in allowed or (row is None and event.version is None):
        got = f"got a move to {event.state}"
        if row is None:
            raise BoardConflict(
                f"version {event.number} is not on the board: {got}, expected it to be registered first"
            )
        standing = f"{row.state} already" if event.state is row.state else row.state
        may = " or ".join(map(str, sorted(allowed)))
        raise BoardConflict(f"version {event.number} is {standing}: {got}, expected one to {may}")


def _check_replica(event: BoardEvent, canary: int | None) -> None:
    is_canary = event.state is VersionState.CANARY
    if is_canary and canary is not None:
        raise BoardConflict(f"version {event.number} as canary: got canary {canary} in use, expected none")
    if is_canary != bool(event.replica):
        expected = "the one it drafts on" if is_canary else "none, because it drafts on all or on none"
        raise BoardConflict(
            f"version {event.number} as {event.state}: got replica {event.replica!r}, expected {expected}"
        )
