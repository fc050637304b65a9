"""The drafts of a speculator: all of them as a table, and the card of one."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from ..buffer.board.version import BoardEvent
from ..buffer.errors import ConfigError
from ..policies.readings.served_drafts import ServedDraft, served_drafts
from ..policies.readings.served_labels import served_labels
from .draft_card import DraftCard
from .snapshot import REPLICA, Snapshot
from .tables import VersionLine, VersionsTable, version_lines


@dataclass(frozen=True, slots=True)
class DraftList:
    """The newest drafts, oldest first."""

    lines: Sequence[VersionLine]
    older: int  # drafts before them
    is_served: bool  # whether a server is alive to draft with the live one

    def as_json(self) -> list[dict[str, object]]:
        """One object for each draft."""
        return [asdict(line) | {"prediction_error": line.prediction_error} for line in self.lines]

    def view(self) -> RenderableType:
        """For a terminal, with what it leaves out."""
        table = VersionsTable(self.lines, is_served=self.is_served)
        total = self.older + len(self.lines)
        notes = [f"and {self.older} older: --newest {total} shows all"] if self.older else []
        if not self.lines:
            notes.append("no draft is on the board yet; a learner puts the first one there when it starts")
        elif not self.is_served:
            notes.append("no server is alive: nothing drafts with the live version")
        return Group(table, *map(Text, notes))


def draft_list(seen: Snapshot, newest: int) -> DraftList:
    """The `newest` drafts on the board, with what each served."""
    lines = _lines(seen)
    return DraftList(lines[-newest:], max(0, len(lines) - newest), bool(seen.present(REPLICA)))


def draft_card(seen: Snapshot, events: Sequence[BoardEvent], number: int) -> DraftCard:
    """The card of draft `number`. ConfigError when it is not on the board."""
    if number not in seen.state.rows:
        raise ConfigError(
            f"draft {number}: got a number that is not on the board, expected one of {[*seen.state.rows]}"
        )
    (line,) = [line for line in _lines(seen) if line.number == number]
    served = served_drafts(seen.counters()).get(number, ServedDraft())
    by_label = served_labels(seen.counters(), number)
    own = [event for event in events if event.number == number]
    return DraftCard(line=line, row=seen.state.rows[number], events=own, served=served, by_label=by_label)


def _lines(seen: Snapshot) -> list[VersionLine]:
    served = served_drafts(seen.counters())
    return version_lines(seen.state, {number: one.sums for number, one in served.items()})
