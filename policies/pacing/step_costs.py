"""What a decode step costs by batch size and draft steps: as measured here, as a table says, and in between."""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

#: Batch sizes at which a new bucket begins: costs are alike within one.
BATCH_BUCKETS = (1, 2, 3, 5, 9, 17, 33, 65)
#: Steps that say how fast the machine is now: the median of nine survives four hiccups.
PACE_STEPS = 9


def bucket_of(batch_size: int) -> int:
    """The beginning of the bucket `batch_size` falls into. The first one for sizes below it."""
    return BATCH_BUCKETS[max(bisect_right(BATCH_BUCKETS, batch_size) - 1, 0)]


class StepCosts:
    """What a decode step costs by batch bucket and steps, at the bucket's present pace; robust to hiccups.

    A machine is slower at some times than at others, by its clock, its neighbours and the length of contexts, and then
    it is slower at every length. Costs that were measured at different times say nothing about lengths, so each is
    divided by the pace of its time: the median, over the last PACE_STEPS steps in the bucket, of cost over what that
    length usually costs there. That is the median of its last `window` costs so divided, of those among them that are
    at most `max_age_steps` steps older than the newest; a length that has run less often than PACE_STEPS says nothing
    about the pace, since its first steps would be taken for what is usual.

    A table, where there is one, fills in what was not measured here, scaled to what was: another machine of its kind
    may be slower as a whole.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        table: "CostTable | None" = None,
        *,
        window: int = 33,
        max_age_steps: int = 400,
    ) -> None:
        self._lengths = tuple(lengths)
        self._table = table
        self._window = window
        self._max_age_steps = max_age_steps
        self._steps_run: dict[int, int] = {}  # by bucket
        self._seen: dict[tuple[int, int], deque[tuple[int, float]]] = {}  # steps run before, milliseconds at pace 1
        self._usual_ms: dict[int, dict[int, float]] = {}  # bucket -> steps -> their median
        self._paces: dict[int, deque[float]] = {}  # by bucket
        self._now_ms: dict[int, dict[int, float]] = {}  # bucket -> steps -> at the present pace, fewest steps first

    def observe(self, bucket: int, steps: int, cost_ms: float) -> None:
        """One decode step; a clock that did not move counts as a nanosecond, since costs divide."""
        cost_ms = max(cost_ms, 1e-6)
        usual_ms = self._usual_ms.setdefault(bucket, {})
        paces = self._paces.setdefault(bucket, deque(maxlen=PACE_STEPS))
        if self.count(bucket, steps) >= PACE_STEPS:
            paces.append(cost_ms / usual_ms[steps])
        pace = median(paces or [1.0])
        seen = self._seen.setdefault((bucket, steps), deque(maxlen=self._window))
        at = self._steps_run[bucket] = self._steps_run.get(bucket, 0) + 1
        seen.append((at, cost_ms / pace))
        while seen[0][0] < at - self._max_age_steps:
            seen.popleft()
        usual_ms[steps] = median(ms for _, ms in seen)
        self._now_ms[bucket] = {k: ms * pace for k, ms in sorted(usual_ms.items())}

    def count(self, bucket: int, steps: int) -> int:
        """How many measurements the median of `steps` in this bucket rests on, at most the window."""
        return len(self._seen.get((bucket, steps), ()))

    def measured(self, bucket: int) -> Mapping[int, float]:
        """Steps -> milliseconds, of what was measured in this bucket, fewest steps first."""
        return self._now_ms.get(bucket, {})

    def medians(self) -> dict[int, Mapping[int, float]]:
        """`measured` of every bucket; may be asked from another thread than the one that measures."""
        return dict(sorted(self._now_ms.copy().items()))

    def predicted(self, bucket: int) -> Mapping[int, float]:
        """Steps -> milliseconds for every length; empty before anything is known about this bucket.

        Straight lines between measured steps; beyond them, the line of the nearest two goes on, never downwards. A
        single measurement is used for all, which is optimistic about more steps: they get tried, and then are known.
        With a table, its costs times what the nearest measured length costs over its own entry.
        """
        known = self.measured(bucket)
        if self._table is None:
            return {k: interpolated(known, k) for k in self._lengths} if known else {}
        ratios = {k: cost_ms / self._table.cost_ms(bucket, k) for k, cost_ms in known.items()} or {0: 1.0}
        return {k: self._table.cost_ms(bucket, k) * ratios[nearest(ratios, k)] for k in self._lengths}


class CostTable:
    """What decode steps cost on one machine: straight lines between what was measured, in batch size and in steps."""

    def __init__(self, cost_ms: Mapping[int, Mapping[int, float]]) -> None:
        """`cost_ms` is batch size -> steps -> milliseconds; at least one of each, every cost above zero."""
        self._rows = {batch: dict(sorted(row.items())) for batch, row in sorted(cost_ms.items())}

    def cost_ms(self, batch_size: int, steps: int) -> float:
        """Milliseconds of one decode step; beyond the table the line of the nearest two goes on, never downwards."""
        by_batch = {batch: interpolated(row, steps) for batch, row in self._rows.items()}
        return max(interpolated(by_batch, batch_size), 1e-6)


def nearest(known: Mapping[int, float], k: int) -> int:
    """The key next to `k`; of two alike the first."""
    return min(known, key=lambda key: abs(key - k))


def interpolated(known: Mapping[int, float], k: int) -> float:
    """Value at `k` of the straight lines through `known` (not empty, ascending keys), as StepCosts.predicted says."""
    keys = list(known)
    if len(keys) == 1:
        return known[keys[0]]
    i = min(max(bisect_right(keys, k), 1), len(keys) - 1)
    left = keys[i - 1]
    right = keys[i]
    slope = (known[right] - known[left]) / (right - left)
    if not left <= k <= right:
        slope = max(slope, 0.0)
    anchor = left if k < right else right
    return known[anchor] + slope * (k - anchor)
