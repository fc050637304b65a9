"""Who did what to a board, when and why: version events, changes of the operator's token, refused operators."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..plain_text import printable, utc_time
from ..stream.trace_buffer import entry_order
from .reason import Why
from .version import BoardEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One line of the audit trail. `by` is the writer's own claim; nothing proves it."""

    entry_id: str  # given by Redis; sorts by Redis' clock
    at: float  # unix seconds; of an event by its writer's clock, else by Redis'
    by: str
    what: str
    why: str
    refused: bool = False  # an operator's act that came without the token and changed nothing


def audit_trail(
    events: Iterable[BoardEvent], others: Iterable[AuditEntry], words: Callable[[Why], str]
) -> list[AuditEntry]:
    """Return all of them in the order Redis took them in, newest last; `words` are those of an event's reason."""
    entries = [
        AuditEntry(
            entry_id=event.event_id,
            at=event.at,
            by=event.by,
            what=f"version {event.number} {event.state}",
            why=words(event.why),
        )
        for event in events
    ]
    return sorted([*entries, *others], key=lambda entry: entry_order(entry.entry_id))


def audit_fields(entry: AuditEntry) -> Mapping[str, str | float | bool]:
    """Return `entry` as JSON values, its time once for machines and once for people."""
    return {
        "at": entry.at,
        "when": utc_time(entry.at),
        "by": entry.by,
        "what": entry.what,
        "why": entry.why,
        "refused": entry.refused,
    }


def audit_line(entry: AuditEntry) -> str:
    """Return `entry` as one line of printable characters, whatever its writer put into it."""
    return printable(f"{utc_time(entry.at)}  {entry.by:<20}  {entry.what:<24}  {entry.why}")


def entry_time(entry_id: str) -> float:
    """Unix seconds at which Redis took `entry_id` in."""
    return entry_order(entry_id)[0] / 1000
