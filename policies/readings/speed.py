"""Is it faster than plain decoding? Speculative steps against plain ones of the same batch sizes.

Where no plain step is there to compare with, a speculative step bounds one of the same requests, and so the speed:

- it holds a forward of the target over all that a plain step computes, and more. So a plain step takes no longer, and
  the speed is at most the tokens that a request gets from a step;
- what else it does is draft, and verify further tokens. Each token costs at most a plain step: the target could decode
  them one by one, and a draft is no larger than its target. So the speed is at least those tokens over all that a
  request passes through both models in a step (tokens_computed), and where that is not known, at least 0.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .definitions import DEFINITIONS, Reading
from .evidence import why_absent
from .ratio_sums import Z_95
from .tables import StepKey, StepSums, Table, total
from .windows import Window

NAME = "speed_over_plain"
#: Fewer plain steps in a bucket say nothing: the first ones after a change of length are slow.
MIN_PLAIN_STEPS = 3
#: Of the speculative time, at least so much must be at batch sizes at which plain steps were taken.
MIN_COVERED = 0.5
#: Spans of time with steps, below which no interval is given.
MIN_BLOCKS = 8

HOW_TO_MEASURE = (
    "to measure it start the server with `--speculative-adaptive` and 0 among its candidate_steps (docs/pacing.md)"
)


@dataclass(frozen=True, slots=True)
class _Speeds:
    """Speculative and plain steps by batch bucket; the plain ones of buckets with enough of them alone."""

    drafted: dict[int, StepSums]
    plain: dict[int, StepSums]

    @property
    def covered(self) -> float:
        """Share of the speculative time at batch sizes with plain steps."""
        seconds = {bucket: row.seconds for bucket, row in self.drafted.items()}
        known = sum(spent for bucket, spent in seconds.items() if bucket in self.plain)
        return known / sum(seconds.values()) if any(seconds.values()) else 0.0

    @property
    def ratio(self) -> float | None:
        """Tokens of speculative steps over those that plain steps would have committed in the same time."""
        buckets = [bucket for bucket in self.drafted if bucket in self.plain]
        tokens = sum(self.drafted[bucket].tokens for bucket in buckets)
        plain = sum(self.drafted[bucket].seconds * _per_second(self.plain[bucket]) for bucket in buckets)
        return tokens / plain if plain else None


def speed_over_plain(window: Window, computed: int | None = None) -> Reading:
    """Over the batch sizes at which both were seen; where plain steps are missing, no value, and bounds of it.

    Plain steps of the window count; for a batch size without enough of them, those since the replicas' boots. Then the
    reading is as old as the newest plain step, and has no interval. Otherwise the interval is a jackknife over spans
    of time (Efron and Stein 1981), since the steps of a moment resemble each other. Without speculative steps in the
    window, those since the boots count. Bounds are `low` and `high` beside a reason; `computed` is tokens_computed.
    """
    steps = window.table("scheduler", "steps") or {}
    own = _speeds(steps, steps)
    ever = _speeds(window.steps_since_boot, window.steps_since_boot)
    is_own = own.covered >= MIN_COVERED
    speeds = own if is_own else _Speeds(own.drafted or ever.drafted, ever.plain | own.plain)
    absent = why_absent(window, "scheduler", 60.0)
    why = absent or _why_unknown(window, speeds)
    at = _oldest(window, is_own=is_own)
    value = speeds.ratio
    if not why and at is not None and window.until_s - at > DEFINITIONS[NAME].max_age_s:
        why = f"the newest plain step is {window.until_s - at:.0f} s old; {HOW_TO_MEASURE}"
    if why or value is None or at is None:
        count, low, high = (0, None, None) if absent else _bounds(speeds.drafted.values(), computed)
        return Reading(
            name=NAME,
            value=None,
            count=count,
            at=at,
            low=low,
            high=high,
            why_unknown=why or "no time was spent in plain steps",
        )
    low, high = _interval(value, window.step_blocks) if is_own else (None, None)
    return Reading(
        name=NAME, value=value, count=sum(row.steps for row in speeds.plain.values()), at=at, low=low, high=high
    )


def tokens_computed(steps: int, width: int, verified: int) -> int:
    """That a request passes through target and draft in a step: `steps` drafts deep, `width` wide (--speculative-*).

    The target verifies `verified` of them. The draft reads up to steps + 1 that were committed, which gives its first
    proposals, and proposes the others from `width` tokens at a time.
    """
    return verified + (steps + 1) + (steps - 1) * width


def _bounds(drafted: Iterable[StepSums], computed: int | None) -> tuple[int, float | None, float | None]:
    """The speculative steps that bound the speed, and the bounds; none without a step."""
    rows = [row for row in drafted if row.requests]
    if not rows:
        return 0, None, None
    per_step = sum(row.tokens for row in rows) / sum(row.requests for row in rows)
    # Not below 1: tokens that come after a request's end count for nobody, and plain steps commit none of those either.
    return sum(row.steps for row in rows), per_step / computed if computed else 0.0, max(per_step, 1.0)


def _why_unknown(window: Window, speeds: _Speeds) -> str:
    if not speeds.drafted:
        return "no speculative step was ever taken"
    if not any(key.draft_steps == 0 and row.steps for key, row in window.steps_since_boot.items()):
        return f"no plain step was ever taken; {HOW_TO_MEASURE}"
    if speeds.covered < MIN_COVERED:
        return f"plain steps were taken at batch sizes of {speeds.covered:.0%} of the decode time; {HOW_TO_MEASURE}"
    return ""


def _oldest(window: Window, *, is_own: bool) -> float | None:
    return window.at("scheduler") if is_own else window.plain_at


def _speeds(drafted: Table, plain: Table) -> _Speeds:
    by_bucket = _pooled((key, row) for key, row in plain.items() if key.draft_steps == 0)
    return _Speeds(
        _pooled((key, row) for key, row in drafted.items() if key.draft_steps > 0 and row.steps),
        {bucket: row for bucket, row in by_bucket.items() if row.steps >= MIN_PLAIN_STEPS and row.seconds},
    )


def _pooled(rows: Iterable[tuple[StepKey, StepSums]]) -> dict[int, StepSums]:
    return total({"": {key.bucket: row}} for key, row in rows).get("", {})  # type: ignore[return-value]


def _per_second(row: StepSums) -> float:
    return row.tokens / row.seconds


def _interval(value: float, blocks: Sequence[Table]) -> tuple[float | None, float | None]:
    """95 % interval of `value` from the ratios that leave out one block each; none where one of these is not known."""
    filled = [block for block in blocks if any(row.steps for row in block.values())]
    if len(filled) < MIN_BLOCKS:
        return None, None
    left = [_without(filled, place) for place in range(len(filled))]
    known = [ratio for ratio in left if ratio is not None]
    if len(known) < len(left):
        return None, None
    n = len(known)
    mean = math.fsum(known) / len(known)
    error = math.sqrt((n - 1) / n * math.fsum((ratio - mean) ** 2 for ratio in known))
    # Student's quantile by the first term of its expansion (Fisher and Cornish 1960).
    wide = (Z_95 + (Z_95**3 + Z_95) / (4 * (n - 1))) * error
    return max(value - wide, 0.0), value + wide


def _without(blocks: Sequence[Table], place: int) -> float | None:
    """The ratio of all blocks but one; None where that one alone had the plain steps of a batch size."""
    every, rest = (
        total({"": block} for block in some)[""] for some in (blocks, [*blocks[:place], *blocks[place + 1 :]])
    )
    speeds = _speeds(rest, rest)
    return speeds.ratio if set(speeds.plain) == set(_speeds(every, every).plain) else None
