"""How far a contribution may be off: the jackknife over short stretches of both periods.

What a replica serves in neighbouring seconds is alike (the same requests, the same other processes), so neither
requests nor steps are taken to be independent: neighbouring stretches of the history are grouped, and each group is
left out in turn (Shao and Tu, The Jackknife and Bootstrap, 1995, section 9). The two periods are independent.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean

from .amounts import Amounts, added
from .change import Change, change

#: Groups of neighbouring stretches in a period, at most and at least; with fewer there is no interval.
MAX_GROUPS = 12
MIN_GROUPS = 4
#: A contribution of less than this is not worth a cause's name, however sure it is: 2 % of the speed.
SMALLEST = 0.02
#: The same where no interval can be given.
SMALLEST_UNSURE = 0.1
#: Chance that an explanation blames anything when nothing has changed. Half of it is for causes that stand out among
#: all causes (Bonferroni), half for the speed of a request, whose change lets its own causes be named.
FALSE_BLAME = 0.05


@dataclass(frozen=True, slots=True)
class Noise:
    """The standard error of a contribution, in units of the logarithm, and its degrees of freedom."""

    error: float
    freedom: int

    def half_width(self, chance_outside: float) -> float:
        """Half of the two-sided interval that misses the truth with this chance."""
        return t_quantile(1.0 - chance_outside / 2, self.freedom) * self.error


#: Reads one figure of a change; None where it is unknown.
Figure = Callable[[Change], float | None]


def noise_of(before: Sequence[Amounts], now: Sequence[Amounts], figures: Mapping[str, Figure]) -> dict[str, Noise]:
    """Of every figure, under its name; empty where one period has too few stretches to tell."""
    periods = _grouped(before), _grouped(now)
    if min(map(len, periods)) < MIN_GROUPS:
        return {}
    whole = [added(groups) for groups in periods]
    samples = [
        [change(_without(periods[0], i), whole[1]) for i in range(len(periods[0]))],
        [change(whole[0], _without(periods[1], i)) for i in range(len(periods[1]))],
    ]
    found = {name: _noise(figure, samples) for name, figure in figures.items()}
    return {name: noise for name, noise in found.items() if noise is not None}


def is_noise(log: float, noise: Noise | None, chance: float) -> bool:
    """Whether a contribution cannot be told from none, where one that is none may pass with this `chance`."""
    if noise is None:
        return abs(log) < SMALLEST_UNSURE
    return abs(log) < SMALLEST or abs(log) <= noise.half_width(chance)


def t_quantile(chance: float, freedom: int) -> float:
    """Student's quantile for `chance` above one half, by Abramowitz and Stegun's expansion 26.7.5."""
    z = NormalDist().inv_cdf(chance)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def _grouped(stretches: Sequence[Amounts]) -> list[Amounts]:
    """Neighbours added up to at most MAX_GROUPS of about equal number; a stretch that counts nothing is no evidence."""
    served = [each for each in stretches if each.steps or each.served or each.seconds]
    count = min(len(served), MAX_GROUPS)
    edges = [round(i * len(served) / count) for i in range(count + 1)] if count else [0]
    return [added(served[first:last]) for first, last in pairwise(edges)]


def _without(groups: Sequence[Amounts], left_out: int) -> Amounts:
    return added(group for i, group in enumerate(groups) if i != left_out)


def _noise(figure: Figure, samples: Sequence[Sequence[Change]]) -> Noise | None:
    variance = 0.0
    freedom = []
    for period in samples:
        logs = [log for sample in period if (log := figure(sample)) is not None]
        if len(logs) < MIN_GROUPS:
            return None
        mean = fmean(logs)
        variance += (len(logs) - 1) / len(logs) * sum((log - mean) ** 2 for log in logs)
        freedom.append(len(logs) - 1)
    return Noise(math.sqrt(variance), min(freedom))
