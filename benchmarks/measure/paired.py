"""Two ways of doing the same thing, measured in pairs whose order is drawn anew: what drifts hits both."""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and extremes of some figures."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        """Of at least one figure."""
        return cls(statistics.median(figures), min(figures), max(figures))

    def text(self, digits: int) -> str:
        """As `1.00 [0.90 .. 1.10]`."""
        return f"{self.median:.{digits}f} [{self.low:.{digits}f} .. {self.high:.{digits}f}]"


@dataclass(frozen=True, slots=True)
class Paired:
    """Figures of both ways, and of each pair the first way's figure over the second's."""

    first: Spread
    second: Spread
    ratio: Spread
    pairs: int


def paired(ways: Mapping[str, Callable[[], float]], pairs: int, seed: int) -> Paired:
    """Measure both `ways` in each of `pairs` pairs, in an order drawn from `seed`; ratios are first over second."""
    first, second = ways
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for pair in range(pairs):
        for name in random.Random(f"{seed} {pair}").sample(list(ways), len(ways)):
            figures[name].append(ways[name]())
    ratios = [a / b for a, b in zip(figures[first], figures[second], strict=True)]
    return Paired(Spread.of(figures[first]), Spread.of(figures[second]), Spread.of(ratios), pairs)
