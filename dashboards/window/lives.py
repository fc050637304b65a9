"""The life of every draft as stays in one state after the other, from the board's events."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ...buffer.board.reason import Why
from ...buffer.board.version import BoardEvent, BoardFold, VersionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """One draft in one state. `to` is None while it lasts; times are unix seconds."""

    state: VersionState
    since: float
    to: float | None
    by: str
    why: Why


@dataclass(slots=True)
class Lives:
    """Stays by draft, oldest first; grows with the events."""

    stays: dict[int, list[Stay]] = field(default_factory=dict)
    _fold: BoardFold = field(default_factory=BoardFold)

    def add(self, events: Iterable[BoardEvent]) -> None:
        """Take in events that follow those taken in before. BoardConflict at the first that does not follow."""
        for event in events:
            concerned = {event.number, self._fold.live, self._fold.canary} - {None}
            before = {number: self._fold.rows.get(number) for number in concerned if number is not None}
            self._fold.extend([event])
            for number, row in before.items():
                now = self._fold.rows[number]
                if now is not row:
                    self._enter(number, Stay(state=now.state, since=event.at, to=None, by=event.by, why=now.why))

    def live_at(self, at: float) -> int | None:
        """Which draft was live at unix second `at`."""
        for number, stays in self.stays.items():
            if any(_covers(stay, at) for stay in stays if stay.state is VersionState.LIVE):
                return number
        return None

    def _enter(self, number: int, stay: Stay) -> None:
        stays = self.stays.setdefault(number, [])
        if stays:
            stays[-1] = replace(stays[-1], to=stay.since)
        stays.append(stay)


def _covers(stay: Stay, at: float) -> bool:
    return stay.since <= at and (stay.to is None or at < stay.to)
