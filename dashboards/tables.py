"""Readings for people: draft versions as plain rows and as a table, and a member's counts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from ..buffer.version import HELD_OUT_SCORE, BoardState, VersionState
from ..policies.acceptance import Tally

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
    reason: str  # of the last change of state
    holdout_accept_length: float | None = None
    served_accept_length: float | None = None
    rounds: int = 0  # the served accept length was pooled over
    parent: int | None = None  # None: the draft the server was started with
    changed_at: float = 0.0  # unix seconds of the last change of state


#: Heading -> the cell below it.
_CELLS: Mapping[str, Callable[[VersionLine], str]] = {
    "version": lambda line: str(line.number),
    "state": lambda line: line.state.value,
    "parent": lambda line: "" if line.parent is None else str(line.parent),
    "held-out": lambda line: _length(line.holdout_accept_length),
    "served": lambda line: _length(line.served_accept_length),
    "rounds": lambda line: str(line.rounds),
    "changed": lambda line: _moment(line.changed_at),
    "reason": lambda line: line.reason,
}
_LEFT = frozenset(("state", "changed", "reason"))

#: What the board alone knows.
BOARD_COLUMNS = ("version", "state", "parent", "held-out", "changed", "reason")
#: What one run has seen of each version.
RUN_COLUMNS = ("version", "state", "held-out", "served", "rounds", "reason")


def version_lines(state: BoardState, served: Mapping[int, Tally] | None = None) -> list[VersionLine]:
    """All versions, oldest first; `served` is what each had accepted, by number, as far as it is known."""
    lines = []
    for number, row in sorted(state.rows.items()):
        tally = (served or {}).get(number, Tally(0, 0))
        lines.append(
            VersionLine(
                number=number,
                state=row.state,
                reason=row.why,
                holdout_accept_length=row.version.scores.get(HELD_OUT_SCORE),
                served_accept_length=tally.accept_length if tally.rounds else None,
                rounds=tally.rounds,
                parent=row.version.parent,
                changed_at=row.changed_at,
            )
        )
    return lines


def versions_table(lines: Sequence[VersionLine], columns: Sequence[str] = BOARD_COLUMNS) -> Table:
    """One row per version in the given order, the live one in green; no cell is read as markup."""
    table = Table(title="draft versions", title_justify="left", expand=False)
    for heading in columns:
        table.add_column(heading, justify="left" if heading in _LEFT else "right", overflow="fold")
    for line in lines:
        table.add_row(*(Text(_CELLS[heading](line)) for heading in columns), style=_STYLES.get(line.state))
    return table


@dataclass(frozen=True, slots=True)
class AlarmLine:
    """One alarm as a member told it last."""

    member: str
    name: str
    detail: str  # one sentence with figures
    action: str  # what was done about it, or is asked for
    version: int | None = None  # that drafted; None where it is no matter of a version
    at: float | None = None  # unix seconds; None: it stands


def alarm_lines(heartbeats: Mapping[str, Mapping[str, object]]) -> list[AlarmLine]:
    """What stands and what was raised lately, by member; what cannot be read as an alarm is passed over."""
    lines = []
    for member, reading in sorted(heartbeats.items()):
        told = [reading.get("standing_alarms"), reading.get("alarms")]
        for alarm in (alarm for some in told if isinstance(some, list) for alarm in some):
            match alarm:
                case {"name": str(name), "reading": str(figures), "action": str(action), **more}:
                    version, at = more.get("version"), more.get("at")
                    lines.append(
                        AlarmLine(
                            member,
                            name,
                            figures,
                            action,
                            version if isinstance(version, int) else None,
                            at if isinstance(at, float) else None,
                        )
                    )
    return lines


def alarms_table(lines: Sequence[AlarmLine]) -> Table:
    """One row per alarm, those that stand in red; no cell is read as markup."""
    table = Table(title="alarms", title_justify="left", expand=False)
    for heading in ("member", "alarm", "version", "since", "action", "reading"):
        table.add_column(heading, overflow="fold")
    for line in lines:
        version = "" if line.version is None else str(line.version)
        since = "stands" if line.at is None else _moment(line.at)
        cells = (line.member, line.name, version, since, line.action, line.detail)
        table.add_row(*map(Text, cells), style="red" if line.at is None else None)
    return table


def as_int(reading: Mapping[str, object], key: str) -> int:
    """Integer reading at `key`; 0 when the member has not said it yet."""
    value = reading.get(key, 0)
    return value if isinstance(value, int) else 0


def as_counts(reading: Mapping[str, object], key: str) -> dict[str, int]:
    """Name -> count reading at `key`; empty when the member has not said it yet."""
    value = reading.get(key)
    return {str(name): int(n) for name, n in value.items()} if isinstance(value, Mapping) else {}


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _length(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
