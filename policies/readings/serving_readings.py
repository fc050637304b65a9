"""What is served: accept length by draft, label and kind, acceptance by position, and how fast tokens come."""

from collections.abc import Callable, Iterable, Mapping

from ...buffer.board.counters import CONTEXT_STARTS, OUTPUT_STARTS
from .definitions import Reading
from .evidence import ratio, reading
from .ratio_sums import Z_95, RatioSums
from .tables import CellKey, CellSums, PlaceSums, PositionKey, StepSums
from .windows import Window


def accept_length(
    window: Window, *, draft: int | None = None, label: str | None = None, kind: str | None = None
) -> Reading:
    """Over all cells, or those of one draft, label or kind of sampling; its interval draws requests as wholes."""
    wanted = (draft, label, kind)

    def is_wanted(key: CellKey) -> bool:
        return all(want is None or want == own for want, own in zip(wanted, key, strict=True))

    return _accept_length(window, is_wanted)


def accept_length_by_draft(window: Window) -> dict[int, Reading]:
    """Of every draft that served rounds, oldest first; OLDER_DRAFTS stands for those no longer told apart."""
    return {draft: accept_length(window, draft=draft) for draft in sorted({key.draft for key in served_keys(window)})}


def accept_length_by_label(window: Window) -> dict[str, Reading]:
    """Of every label that was served, the one with most rounds first."""
    found = {label: accept_length(window, label=label) for label in {key.label for key in served_keys(window)}}
    return dict(sorted(found.items(), key=lambda item: (-rounds(window, label=item[0]), item[0])))


def accept_length_by_kind(window: Window) -> dict[str, Reading]:
    """Of every kind of sampling that was served; their lengths are not comparable."""
    return {kind: accept_length(window, kind=kind) for kind in sorted({key.kind for key in served_keys(window)})}


def served_keys(window: Window) -> list[CellKey]:
    """Cells that served a round in the window."""
    return [key for key, row in (window.table("served", "cells") or {}).items() if row.rounds]


def rounds(window: Window, *, label: str) -> int:
    """Verify rounds of one label."""
    cells: Mapping[CellKey, CellSums] = window.table("served", "cells") or {}
    return sum(row.rounds for key, row in cells.items() if key.label == label)


def _accept_length(window: Window, is_wanted: Callable[[CellKey], bool]) -> Reading:
    cells: Mapping[CellKey, CellSums] = window.table("served", "cells") or {}
    rows = [row for key, row in cells.items() if is_wanted(key)]
    accepted = sum(row.accepted for row in rows)
    of_rounds = sum(row.rounds for row in rows)
    ended = sum((RatioSums.of_row(row[2:]) for row in rows), RatioSums())
    error = ended.standard_error
    length = ratio(accepted, of_rounds)
    return reading(
        window,
        "accept_length",
        part="served",
        value=None if length is None else 1.0 + length,
        count=ended.requests,
        error=None if error is None else Z_95 * error,
        floor=1.0,
        why="no verify round of a captured request was served in the window",
    )


def position_acceptance(window: Window, draft: int | None = None) -> list[Reading]:
    """By position, the first one first, of all drafts or of one; positions that no chain reached are left out."""
    found: dict[int, tuple[int, int]] = {}
    for key, row in (window.table("served", "positions") or {}).items():
        if draft is None or key.draft == draft:
            tried, stood = found.get(key.position, (0, 0))
            found[key.position] = tried + row.tried, stood + row.stood
    return [
        reading(window, "position_acceptance", part="served", value=stood / tried, count=tried)
        for _, (tried, stood) in sorted(found.items())
        if tried
    ]


def output_accept_length(window: Window) -> list[Reading]:
    """By buckets of OUTPUT_STARTS, of all drafts; a bucket where no round began is unknown."""
    return _by_start(window, "output", len(OUTPUT_STARTS))


def context_accept_length(window: Window) -> list[Reading]:
    """By buckets of CONTEXT_STARTS, likewise."""
    return _by_start(window, "context", len(CONTEXT_STARTS))


def _by_start(window: Window, table: str, buckets: int) -> list[Reading]:
    rows: Mapping[PositionKey, PlaceSums] = window.table("served", table) or {}
    why = "no verify round began there in the window"
    found = []
    for bucket in range(buckets):
        mine = [row for key, row in rows.items() if key.position == bucket]
        sums = PlaceSums(sum(row.rounds for row in mine), sum(row.accepted for row in mine))
        name = f"{table}_accept_length"
        found.append(reading(window, name, part="served", value=sums.accept_length, count=sums.rounds, why=why))
    return found


def engine_accept_length(window: Window) -> Reading:
    """Of requests that ended in the window, captured or not; their rounds may have begun before it."""
    engine = window.table("scheduler", "engine") or {}
    ended, accepted, of_rounds = (
        engine[name].total if name in engine else 0 for name in ("requests_ended", "accepted", "rounds")
    )
    length = ratio(accepted, of_rounds)
    value = None if length is None else 1.0 + length
    return reading(
        window, "engine_accept_length", part="scheduler", value=value, count=ended, why="no request ended in the window"
    )


def tokens_per_second(window: Window) -> Reading:
    """Of all replicas together, captured requests or not; 0 is known where a scheduler was there and idle."""
    steps = _steps(window)
    seconds = window.elapsed_s("scheduler")
    return reading(window, "tokens_per_second", part="scheduler", value=ratio(steps.tokens, seconds), count=steps.steps)


def step_time_ms(window: Window, bucket: int | None = None) -> Reading:
    """Mean over all decode steps, or over those of one batch bucket."""
    steps = _steps(window, bucket)
    value = ratio(1e3 * steps.seconds, steps.steps)
    return reading(window, "step_time_ms", part="scheduler", value=value, count=steps.steps, why=_NO_STEP)


def running(window: Window) -> Reading:
    """Mean batch of a decode step."""
    steps = _steps(window)
    value = ratio(steps.requests, steps.steps)
    return reading(window, "running", part="scheduler", value=value, count=steps.steps, why=_NO_STEP)


def tokens_per_request_step(window: Window) -> Reading:
    """The accept length that counts for speed: of all requests, and 1 in plain steps."""
    steps = _steps(window)
    value = ratio(steps.tokens, steps.requests)
    return reading(window, "tokens_per_request_step", part="scheduler", value=value, count=steps.steps, why=_NO_STEP)


def decode_share(window: Window) -> Reading:
    """Mean over replicas.

    replicas x running x tokens_per_request_step / step time x this is tokens_per_second, where replicas is the mean
    number of replicas that counted.
    """
    steps = _steps(window)
    seconds = window.member_seconds("scheduler")
    return reading(window, "decode_share", part="scheduler", value=ratio(steps.seconds, seconds), count=steps.steps)


_NO_STEP = "no decode step was taken in the window"


def _steps(window: Window, bucket: int | None = None) -> StepSums:
    table = window.table("scheduler", "steps") or {}
    return _sum(row for key, row in table.items() if bucket is None or key.bucket == bucket)


def _sum(rows: Iterable[StepSums]) -> StepSums:
    steps, seconds, tokens, requests = map(sum, zip((0, 0.0, 0, 0), *rows, strict=True))
    return StepSums(int(steps), float(seconds), int(tokens), int(requests))
