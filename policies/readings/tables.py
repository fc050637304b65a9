"""Counters as tables of rows, which can be subtracted and added: later minus earlier is what came in between."""

from collections.abc import Callable, Iterable, Mapping
from operator import sub
from typing import Any, NamedTuple

from ...buffer.board.counters import (
    OLDER_DRAFTS,
    OTHER_BATCHES,
    OTHER_STEPS,
    Counters,
    LearnerCounters,
    SchedulerCounters,
    ServedCounters,
    TraceCounters,
)
from ...buffer.board.version import OTHER_LABELS


class CellKey(NamedTuple):
    """Whose rounds."""

    draft: int  # OLDER_DRAFTS stands for all but the newest
    label: str  # "" for requests without one, OTHER_LABELS for the rare ones
    kind: str  # greedy, sampled, edited


class CellSums(NamedTuple):
    """Rounds of one cell as they were served, and sums over its stretches that ended: see RatioSums."""

    rounds: int
    accepted: int
    requests: int
    ended_rounds: int
    ended_accepted: int
    rounds_squared: int
    rounds_accepted: int
    accepted_squared: int


class PositionKey(NamedTuple):
    """One position in the chains of one draft, or one bucket of lengths at which its rounds began."""

    draft: int
    position: int  # 0 first


class PositionSums(NamedTuple):
    """How often a position was reached, and how often its draft was accepted then."""

    tried: int
    stood: int


class PlaceSums(NamedTuple):
    """Rounds that began at lengths of one bucket, and their accepted drafts."""

    rounds: int = 0
    accepted: int = 0

    @property
    def accept_length(self) -> float | None:
        """Tokens per verify round; None without rounds."""
        return 1.0 + self.accepted / self.rounds if self.rounds else None


class StepKey(NamedTuple):
    """Decode steps of one batch bucket and length."""

    bucket: int  # the largest batch size of the bucket; OTHER_BATCHES for those without a row of their own
    draft_steps: int  # 0: plain decoding; OTHER_STEPS for those


class StepSums(NamedTuple):
    """Decode steps taken."""

    steps: int
    seconds: float
    tokens: int
    requests: int  # sum of the batch sizes


class Amount(NamedTuple):
    """A number that only grows: a count, or seconds."""

    total: float


#: A row is one of the tuples above, and so is the key or a name; the rows of one table are of one kind.
Table = Mapping[Any, Any]
#: Table by name.
Tables = Mapping[str, Table]


def tables_of(part: object) -> Tables:
    """The tables of one part of Counters."""
    return _TABLES[type(part)](part)


def difference(later: Tables, earlier: Tables) -> Tables:
    """What `later` counted since `earlier`, table by table.

    Rounds of drafts and labels that are no longer told apart are where they were moved to; what cannot be found there
    counts as nothing. An Amount that fell was counted from 0 again, as after a buffer lost its data: all of it is new.
    """
    return {name: _minus(rows, _moved(earlier.get(name, {}), rows)) for name, rows in later.items()}


def total(tables: Iterable[Tables]) -> dict[str, Table]:
    """The sum of all, table by table and row by row."""
    found: dict[str, dict[Any, Any]] = {}
    for each in tables:
        for name, rows in each.items():
            mine = found.setdefault(name, {})
            for key, row in rows.items():
                mine[key] = _plus(mine[key], row) if key in mine else row
    return dict(found)


def _minus(later: Table, earlier: Table) -> Table:
    return {key: _less(row, earlier[key]) if key in earlier else row for key, row in later.items()}


def _less(row: Any, other: Any) -> Any:
    if isinstance(row, Amount) and row < other:
        return row
    return row._make(max(a - b, 0) for a, b in zip(row, other, strict=True))


def _plus(row: Any, other: Any) -> Any:
    return row._make(a + b for a, b in zip(row, other, strict=True))


def _moved(earlier: Table, later: Table) -> Table:
    """`earlier` with its cells, positions and steps under the names that `later` has for them."""
    gone = [
        key for key in earlier if isinstance(key, CellKey | PositionKey | StepKey) and _is_gone(key, earlier, later)
    ]
    if not gone:
        return earlier
    kept = {key: row for key, row in earlier.items() if key not in gone}
    return total([{"": kept}, *({"": {_place(key, later): earlier[key]}} for key in gone)])[""]


def _is_gone(key: Any, earlier: Table, later: Table) -> bool:
    """Whether a cell was pooled with others; it may have begun again since."""
    return key not in later or min(map(sub, later[key], earlier[key])) < 0


def _place(key: Any, later: Table) -> Any:
    """Where `key` is counted now: with the rare labels of its draft, with the older drafts, or with other steps."""
    if isinstance(key, StepKey):
        return StepKey(OTHER_BATCHES, OTHER_STEPS)
    older = key._replace(draft=OLDER_DRAFTS)
    if isinstance(key, PositionKey):
        return older
    places = (key._replace(label=OTHER_LABELS), older, older._replace(label=OTHER_LABELS))
    return next((place for place in places if place in later and place != key), older)


def _amounts(numbers: Mapping[str, float]) -> Table:
    return {name: Amount(number) for name, number in numbers.items()}


def cells_of(part: ServedCounters | None) -> Table:
    """The table of served cells alone; empty without any."""
    cells = part.cells if part else ()
    return {CellKey(c.draft, c.label, c.kind): CellSums(c.rounds, c.accepted, *c.ended) for c in cells}


def _served(part: ServedCounters) -> Tables:
    lengths = {place: Amount(count) for place, count in enumerate(part.request_lengths)}
    return {
        "cells": cells_of(part),
        "positions": _by_place(part, PositionSums, "tried", "stood"),
        "output": _by_place(part, PlaceSums, "output_rounds", "output_accepted"),
        "context": _by_place(part, PlaceSums, "context_rounds", "context_accepted"),
        "lengths": lengths,
    }


def _by_place(part: ServedCounters, row_of: Callable[[int, int], tuple[int, int]], first: str, second: str) -> Table:
    """Two lists of DraftPositions, of every draft."""
    return {
        PositionKey(row.draft, place): row_of(*pair)
        for row in part.positions
        for place, pair in enumerate(zip(getattr(row, first), getattr(row, second), strict=False))
    }


def steps_of(part: SchedulerCounters) -> Table:
    """The table of decode steps alone."""
    return {StepKey(c.bucket, c.draft_steps): StepSums(c.steps, c.seconds, c.tokens, c.requests) for c in part.steps}


def _scheduled(part: SchedulerCounters) -> Tables:
    durations = {
        (StepKey(cell.bucket, cell.draft_steps), place): Amount(count)
        for cell in part.steps
        for place, count in enumerate(cell.durations)
    }
    names = ("requests_ended", "requests_counted", "rounds", "accepted", "swaps", "swaps_refused")
    ended = _amounts({name: getattr(part, name) for name in names})
    return {
        "steps": steps_of(part),
        "durations": durations,
        "scheduler_seconds": _amounts(part.seconds),
        "engine": ended,
    }


def _traced(part: TraceCounters) -> Tables:
    sent = _amounts({"captured": part.captured, "delivered": part.delivered})
    return {"traces": sent, "dropped": _amounts(part.dropped), "skipped": _amounts(part.skipped)}


def _learnt(part: LearnerCounters) -> Tables:
    names = ("rounds", "rests", "optimiser_steps", "process_cpu_s")
    return {
        "learning": _amounts({name: getattr(part, name) for name in names}),
        "verdicts": _amounts(part.verdicts),
        "learner_seconds": _amounts(part.seconds),
    }


def buffer_of(part: LearnerCounters) -> Tables:
    """What a learner sees of the buffer; it counts over the buffer's life, whichever learner looks."""
    in_buffer = {"delivered": part.delivered, "trimmed": part.trimmed, "dead_lettered": part.dead_lettered}
    return {"buffer": _amounts(in_buffer), "acked": _amounts(part.acked)}


_TABLES: Mapping[type, Callable[[Any], Tables]] = {
    ServedCounters: _served,
    SchedulerCounters: _scheduled,
    TraceCounters: _traced,
    LearnerCounters: _learnt,
}

#: Names of the parts of Counters that have tables.
PARTS = ("served", "scheduler", "traces", "learner")


def part_of(counters: Counters, name: str) -> object | None:
    """The part of one name; None where the member does not count it."""
    found: object | None = getattr(counters, name)
    return found
