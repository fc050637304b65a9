"""Who did what to a board, when and why: version events, changes of the operator's token, refused operators."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from .base import place
from .version import BoardEvent


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit trail. `by` is what the writer said of itself; nothing proves it."""

    entry_id: str  # the board's; sorts by the board's clock
    at: float  # unix seconds; of an event by its writer's clock, else by the board's
    by: str
    what: str
    why: str
    refused: bool = False  # an operator's act that came without the token, and changed nothing


def audit_trail(events: Iterable[BoardEvent], others: Iterable[AuditEntry] = ()) -> list[AuditEntry]:
    """Return all of them in the order the board took them in, newest last."""
    return sorted([*map(_entry_of, events), *others], key=lambda entry: place(entry.entry_id))


def audit_fields(entry: AuditEntry) -> Mapping[str, str | float | bool]:
    """Return `entry` as JSON values, its time once for machines and once for people."""
    return {
        "at": entry.at,
        "when": _when(entry.at),
        "by": entry.by,
        "what": entry.what,
        "why": entry.why,
        "refused": entry.refused,
    }


def audit_line(entry: AuditEntry) -> str:
    """Return `entry` as one line of printable characters, whatever its writer put into it."""
    line = f"{_when(entry.at)}  {entry.by:<20}  {entry.what:<24}  {entry.why}"
    return printable(line)


def printable(text: str) -> str:
    """`text` without anything that would move a terminal's cursor, change its colours or end the line."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def entry_time(entry_id: str) -> float:
    """Unix seconds at which the board took `entry_id` in."""
    return place(entry_id)[0] / 1000


def _entry_of(event: BoardEvent) -> AuditEntry:
    return AuditEntry(event.event_id, event.at, event.by, f"version {event.number} {event.state}", event.why)


def _when(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # no calendar has it; the trail must stay readable
        return f"{at:g} s"
