"""Looks at one board: what is shown together is read together, and what was read before is not read again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...buffer.board.counters import Counters
from ...buffer.board.member_history import HISTORY_S
from ...buffer.board.version import BoardEvent
from ...buffer.board.version_board import VersionBoard
from ...buffer.errors import BoardConflict
from ..snapshot import Snapshot
from .lives import Lives


@dataclass(frozen=True, slots=True)
class Look:
    """A speculator at one moment, and how it came there."""

    seen: Snapshot
    events: Sequence[BoardEvent]  # of the whole board, oldest first
    lives: Lives


@dataclass(slots=True, kw_only=True)
class BoardReader:
    """Reads one board again and again; for one thread at a time."""

    speculator: str
    board: VersionBoard
    _events: list[BoardEvent] = field(default_factory=list)
    _lives: Lives = field(default_factory=Lives)
    _histories: dict[str, list[Counters]] = field(default_factory=dict)

    def look(self) -> Look:
        """Read what is new; a few round trips, and one for every member.

        Raises BufferUnavailable, and DecodeError or BoardConflict for a board that cannot be read.
        """
        members = self.board.members()
        now = self.board.now()
        state = self.board.read()
        self._read_events(state.last_event_id)
        self._histories = {member: self._history(member, now) for member in members}
        seen = Snapshot(
            speculator=self.speculator, at=now, state=state, members=members, histories=dict(self._histories)
        )
        return Look(seen, tuple(self._events), self._lives)

    def _read_events(self, newest: str) -> None:
        """Bring the events up to date; from the beginning when the newest known one is no longer on the board."""
        known = self._events[-1].event_id if self._events else ""
        if known == newest:
            return
        try:
            new = self.board.events(known)
        except BoardConflict:
            self._events = []
            self._lives = Lives()
            new = self.board.events()
        self._lives.add(new)
        self._events.extend(new)

    def _history(self, member: str, now: float) -> list[Counters]:
        """Entries of the last HISTORY_S; those read before are kept, also where the board has thinned them since."""
        known = [entry for entry in self._histories.get(member, []) if entry.at > now - HISTORY_S]
        newest = known[-1].at if known else 0.0
        return [*known, *(entry for entry in self.board.history(member, newest) if entry.at > newest)]


#: Name of a speculator -> its board.
OpenBoard = Callable[[str], VersionBoard]
#: Panel name -> its JSON values.
Panels = Mapping[str, Mapping[str, object]]
