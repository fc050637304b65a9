"""What the board and the heartbeats hold, for people: draft versions and alarms as rows and as tables, and counts.

Anybody who may write to Redis chooses the texts, so the tables show printable characters only and read none as markup.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from ..buffer.plain_text import printable, utc_time
from ..buffer.version import JUDGED_SCORE, BoardRow, BoardState, VersionState
from ..policies.acceptance import Tally
from ..policies.judged_on import sentence

_STYLES = {
    VersionState.LIVE: "bold green",
    VersionState.CANARY: "yellow",
    VersionState.REFUSED: "dim",
    VersionState.ROLLED_BACK: "red",
}


@dataclass(frozen=True, slots=True)
class VersionLine:
    """One draft version; accept lengths include the bonus token and are None where nothing was measured."""

    number: int
    state: VersionState
    reason: str  # of the last change of state, and what the version was judged on where that is known
    judged_accept_length: float | None = None
    served_accept_length: float | None = None
    rounds: int = 0  # verify rounds that the served accept length was pooled over
    parent: int | None = None  # None: the draft the server was started with
    changed_at: float = 0.0  # unix seconds of the last change of state


#: Heading -> the cell below it.
_CELLS: Mapping[str, Callable[[VersionLine], str]] = {
    "version": lambda line: str(line.number),
    "state": lambda line: line.state.value,
    "parent": lambda line: "" if line.parent is None else str(line.parent),
    "judged": lambda line: _length(line.judged_accept_length),
    "served": lambda line: _length(line.served_accept_length),
    "rounds": lambda line: str(line.rounds),
    "changed": lambda line: utc_time(line.changed_at),
    "reason": lambda line: line.reason,
}
_LEFT = frozenset(("state", "changed", "reason"))

#: Columns that the board alone can fill.
BOARD_COLUMNS = ("version", "state", "parent", "judged", "changed", "reason")
#: Columns for what one run has seen of each version.
RUN_COLUMNS = ("version", "state", "judged", "served", "rounds", "reason")


def version_lines(state: BoardState, served: Mapping[int, Tally] | None = None) -> list[VersionLine]:
    """All versions, oldest first; `served` holds by number what each had accepted, where that is known."""
    lines = []
    for number, row in sorted(state.rows.items()):
        tally = (served or {}).get(number, Tally(0, 0))
        lines.append(
            VersionLine(
                number=number,
                state=row.state,
                reason=_reason(row),
                judged_accept_length=row.version.scores.get(JUDGED_SCORE),
                served_accept_length=tally.accept_length if tally.rounds else None,
                rounds=round(tally.rounds),
                parent=row.version.parent,
                changed_at=row.changed_at,
            )
        )
    return lines


def versions_table(lines: Sequence[VersionLine], columns: Sequence[str] = BOARD_COLUMNS) -> Table:
    """One row per version in the given order, the live one in green."""
    table = Table(title="draft versions", title_justify="left", expand=False)
    for heading in columns:
        table.add_column(heading, justify="left" if heading in _LEFT else "right", overflow="fold")
    for line in lines:
        table.add_row(*(_cell(_CELLS[heading](line)) for heading in columns), style=_STYLES.get(line.state))
    return table


@dataclass(frozen=True, slots=True)
class AlarmLine:
    """One alarm as a member last reported it."""

    member: str
    name: str
    detail: str  # one sentence with figures
    action: str  # what was done about it, or should be
    version: int | None = None  # the one that drafted; None where the alarm is not about a version
    at: float | None = None  # unix seconds; None: it is active


def alarm_lines(heartbeats: Mapping[str, Mapping[str, object]]) -> list[AlarmLine]:
    """Active and recent alarms, by member; what cannot be read as an alarm is skipped."""
    lines = []
    for member, status in sorted(heartbeats.items()):
        reported = [status.get("standing_alarms"), status.get("alarms")]
        for alarm in (alarm for some in reported if isinstance(some, list) for alarm in some):
            match alarm:
                case {"name": str(name), "reading": str(detail), "action": str(action), **more}:
                    version, at = more.get("version"), more.get("at")
                    lines.append(
                        AlarmLine(
                            member,
                            name,
                            detail,
                            action,
                            version if isinstance(version, int) else None,
                            at if isinstance(at, float) else None,
                        )
                    )
    return lines


def alarms_table(lines: Sequence[AlarmLine]) -> Table:
    """One row per alarm, active ones in red."""
    table = Table(title="alarms", title_justify="left", expand=False)
    for heading in ("member", "alarm", "version", "since", "action", "detail"):
        table.add_column(heading, overflow="fold")
    for line in lines:
        version = "" if line.version is None else str(line.version)
        since = "active" if line.at is None else utc_time(line.at)
        cells = (line.member, line.name, version, since, line.action, line.detail)
        table.add_row(*map(_cell, cells), style="red" if line.at is None else None)
    return table


def as_int(status: Mapping[str, object], key: str) -> int:
    """The integer at `key` of a member's status; 0 when it has not reported one yet."""
    value = status.get(key, 0)
    return value if isinstance(value, int) else 0


def as_counts(status: Mapping[str, object], key: str) -> dict[str, int]:
    """Name -> count at `key` of a member's status; empty when it has not reported any yet."""
    value = status.get(key)
    return {str(name): int(n) for name, n in value.items()} if isinstance(value, Mapping) else {}


def _reason(row: BoardRow) -> str:
    """The last change says what the verdict was judged on only where it was the verdict."""
    judged_on = "" if row.version.judged_on is None else sentence(row.version.judged_on)
    text = row.why if judged_on in row.why else f"{row.why}; {judged_on}"
    trained = ", ".join(row.version.trained_targets)
    return f"{text}; trained on target {trained}" if trained else text


def _cell(text: str) -> Text:
    return Text(printable(text))


def _length(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
