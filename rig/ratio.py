"""Figures that were measured in pairs: one way's over another's, with an interval."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and extremes of some figures."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        """Return the spread of at least one figure."""
        return cls(statistics.median(figures), min(figures), max(figures))

    def text(self, digits: int) -> str:
        """Return, for example, `1.00 [0.90 .. 1.10]`."""
        return f"{self.median:.{digits}f} [{self.low:.{digits}f} .. {self.high:.{digits}f}]"


@dataclass(frozen=True, slots=True)
class Ratio:
    """One way's figure over another's, pair by pair."""

    spread: Spread
    mean: float  # geometric
    interval: tuple[float, float]  # of that mean, two-sided, 95 %; infinitely wide for one pair
    pairs: int

    def text(self) -> str:
        """Return, for example, `0.985 (95 % interval 0.979 .. 0.991), median 0.987 [0.900 .. 1.020] of 30`."""
        low, high = self.interval
        return f"{self.mean:.3f} (95 % interval {low:.3f} .. {high:.3f}), median {self.spread.text(3)} of {self.pairs}"


def ratio(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """Divide figures measured in pairs, all above zero: first over second."""
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    logs = [math.log(each) for each in ratios]
    centre = statistics.fmean(logs)
    half = math.inf
    if len(logs) > 1:
        factor = float(student.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1))
        half = factor * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(Spread.of(ratios), math.exp(centre), (math.exp(centre - half), math.exp(centre + half)), len(ratios))
