"""Samples of what a replica serves: rounds by draft, label and position, decode steps, swaps, traces.

A replica tells a bounded number of drafts and labels apart (ServedCounters in buffer/board/counters.py). A cell that
gives way is poured into `other` of its draft, a draft into `older`, so these two jump, and a cell that comes back
starts at 0. The sums over all cells, and over those of one draft, never do: they are metrics of their own, and figures
over more than one cell come from those.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...buffer.board.counters import (
    LENGTH_EDGES,
    OTHER_BATCHES,
    OTHER_STEPS,
    STEP_MS_EDGES,
    Counters,
    SchedulerCounters,
    ServedCounters,
    TraceCounters,
)
from ...policies.readings.tables import CellKey, CellSums, StepKey, StepSums, Table, tables_of
from .samples import Histogram, Sample
from .shown_names import OTHER, ShownNames


def replica_samples(counters: Counters, names: ShownNames) -> Iterator[Sample]:
    """Of the parts that the member counts; nothing of the others."""
    if counters.served is not None:
        yield from _served(counters.served, names)
    if counters.scheduler is not None:
        yield from _scheduled(counters.scheduler)
    if counters.traces is not None:
        yield from _traces(counters.traces)


def _served(part: ServedCounters, names: ShownNames) -> Iterator[Sample]:
    tables = tables_of(part)
    cells: Mapping[CellKey, CellSums] = tables["cells"]
    yield Sample("paceline_verify_rounds_total", {}, sum(row.rounds for row in cells.values()))
    yield Sample("paceline_verify_accepted_total", {}, sum(row.accepted for row in cells.values()))
    yield Sample("paceline_verify_rounds_unattributed_total", {}, part.unattributed)
    for key, row in cells.items():
        draft = {"draft": names.draft(key.draft)}
        cell = {**draft, "label": names.label(key.label), "kind": key.kind}
        for prefix, labels in (("draft", draft), ("label", cell)):
            yield Sample(f"paceline_{prefix}_verify_rounds_total", labels, row.rounds)
            yield Sample(f"paceline_{prefix}_verify_accepted_total", labels, row.accepted)
    for place, counts in tables["positions"].items():
        labels = {"draft": names.draft(place.draft), "position": str(place.position + 1)}
        yield Sample("paceline_drafts_tried_total", labels, counts.tried)
        yield Sample("paceline_drafts_stood_total", labels, counts.stood)
    yield Sample(
        "paceline_request_accept_length", {}, Histogram(_spread(tables["lengths"], range(len(LENGTH_EDGES) + 1)), None)
    )


def _scheduled(part: SchedulerCounters) -> Iterator[Sample]:
    tables = tables_of(part)
    steps: Mapping[StepKey, StepSums] = tables["steps"]
    for key, row in steps.items():
        labels = _step_labels(key)
        spread = _spread(tables["durations"], ((key, place) for place in range(len(STEP_MS_EDGES) + 1)))
        yield Sample("paceline_decode_step_seconds", labels, Histogram(spread, row.seconds))
        yield Sample("paceline_decode_step_tokens_total", labels, row.tokens)
        yield Sample("paceline_decode_step_requests_total", labels, row.requests)
        if not key.draft_steps and row.seconds:
            where = {"source": "steps", "batch": labels["batch"]}
            yield Sample("paceline_plain_tokens_per_second", where, row.tokens / row.seconds)
    yield Sample("paceline_committed_tokens_total", {}, sum(row.tokens for row in steps.values()))
    yield from _engine(tables)


def _engine(tables: Mapping[str, Any]) -> Iterator[Sample]:
    for phase, spent in tables["scheduler_seconds"].items():
        yield Sample("paceline_scheduler_seconds_total", {"phase": phase}, spent.total)
    engine = tables["engine"]
    yield Sample("paceline_engine_requests_total", {}, engine["requests_ended"].total)
    yield Sample("paceline_engine_counted_requests_total", {}, engine["requests_counted"].total)
    yield Sample("paceline_engine_verify_rounds_total", {}, engine["rounds"].total)
    yield Sample("paceline_engine_verify_accepted_total", {}, engine["accepted"].total)
    yield Sample("paceline_swaps_total", {"result": "done"}, engine["swaps"].total)
    yield Sample("paceline_swaps_total", {"result": "refused"}, engine["swaps_refused"].total)


def _traces(part: TraceCounters) -> Iterator[Sample]:
    tables = tables_of(part)
    yield Sample("paceline_traces_captured_total", {}, tables["traces"]["captured"].total)
    yield Sample("paceline_traces_total", {"fate": "delivered", "reason": ""}, tables["traces"]["delivered"].total)
    for fate in ("dropped", "skipped"):
        for reason, count in tables[fate].items():
            yield Sample("paceline_traces_total", {"fate": fate, "reason": reason}, count.total)


def _spread(table: Table, keys: Iterable[object]) -> list[float]:
    """Counts by bucket; a bucket that nothing fell into yet may be missing."""
    return [table[key].total if key in table else 0.0 for key in keys]


def _step_labels(key: StepKey) -> dict[str, str]:
    batch = OTHER if key.bucket == OTHER_BATCHES else str(key.bucket)
    return {"batch": batch, "steps": OTHER if key.draft_steps == OTHER_STEPS else str(key.draft_steps)}
