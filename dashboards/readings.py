"""Readings for people: the board as a table, the system's counts as one sum."""

from collections.abc import Mapping
from datetime import UTC, datetime

from rich.table import Table

from ..buffer.version import BoardState

#: Score a version was judged by, as written by the learner.
HELD_OUT_SCORE = "holdout_accept_length"


def versions_table(state: BoardState) -> Table:
    """One row per version, oldest first; the live one is marked."""
    table = Table(title="draft versions", title_justify="left")
    for heading in ("number", "state", "parent", "held-out accept length", "changed", "why"):
        table.add_column(heading)
    for number, row in sorted(state.rows.items()):
        score = row.version.scores.get(HELD_OUT_SCORE)
        table.add_row(
            f"{number}",
            f"[bold green]{row.state}[/]" if number == state.live else str(row.state),
            "" if row.version.parent is None else f"{row.version.parent}",
            "" if score is None else f"{score:.3f}",
            datetime.fromtimestamp(row.changed_at, UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            row.why,
        )
    return table


def as_int(reading: Mapping[str, object], key: str) -> int:
    """Integer reading at `key`; 0 when the member has not said it yet."""
    value = reading.get(key, 0)
    return value if isinstance(value, int) else 0


def as_counts(reading: Mapping[str, object], key: str) -> dict[str, int]:
    """Name -> count reading at `key`; empty when the member has not said it yet."""
    value = reading.get(key)
    return {str(name): int(n) for name, n in value.items()} if isinstance(value, Mapping) else {}
