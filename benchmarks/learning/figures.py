"""Figures of curves: requests to reach a level, means with intervals, and gains paired by seed."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over seeds and the half width of its interval; NaN where one seed, or none, allows no interval."""

    value: float
    half_width: float
    seeds: int

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Mean":
        """Mean and t-interval (two-sided, 95 %) of independent figures."""
        n = len(figures)
        if n == 0:
            return cls(math.nan, math.nan, 0)
        if n == 1:
            return cls(figures[0], math.nan, 1)
        factor = float(student.ppf(0.5 + CONFIDENCE / 2, n - 1))
        return cls(statistics.fmean(figures), factor * statistics.stdev(figures) / math.sqrt(n), n)

    @property
    def excludes_zero(self) -> bool:
        """Whether zero is outside the interval; never with fewer than two seeds."""
        return abs(self.value) > self.half_width

    def text(self, digits: int = 2) -> str:
        """As `1.00 ± 0.10`; without an interval the value alone, without a value a dash."""
        if not self.seeds:
            return "–"  # noqa: RUF001 - a dash in a table
        around = "" if math.isnan(self.half_width) else f" ± {self.half_width:.{digits}f}"
        return f"{self.value:.{digits}f}{around}"


def gains(figures: Sequence[float], over: Sequence[float]) -> Mean:
    """Relative gain of each seed's figure over the same seed's, `figures` and `over` in the same order of seeds.

    Pairing removes how difficult a seed's stream is. Seeds where `over` is zero are left out.
    """
    return Mean.of([a / b - 1.0 for a, b in zip(figures, over, strict=True) if b > 0.0])


def requests_to_reach(ends: Sequence[int], values: Sequence[float], level: float) -> float | None:
    """Requests until the curve first reaches `level`, interpolated between chunks; None when it never does.

    `values[i]` was measured on the chunk that ends with request `ends[i]`, before training on it. At the first chunk
    there is nothing to interpolate from: reached there is reached at its end.
    """
    for i, (end, value) in enumerate(zip(ends, values, strict=True)):
        if value >= level:
            if i == 0:
                return float(end)
            share = (level - values[i - 1]) / (value - values[i - 1])
            return ends[i - 1] + share * (end - ends[i - 1])
    return None


def recovered(ends: Sequence[int], values: Sequence[float], shift_at: int, share: float = 0.9) -> float | None:
    """Requests after the shift until `share` of the in-domain value is back; None when it never is.

    The in-domain value is the mean of the last two chunks that end before or at request `shift_at`.
    """
    before = [value for end, value in zip(ends, values, strict=True) if end <= shift_at]
    after = [(end - shift_at, value) for end, value in zip(ends, values, strict=True) if end > shift_at]
    if not before or not after:
        return None
    level = share * statistics.fmean(before[-2:])
    return requests_to_reach([end for end, _ in after], [value for _, value in after], level)
