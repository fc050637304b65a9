"""Changes of logarithms, and how the parts of a change become parts of the logarithm's change."""

import math
from collections.abc import Iterable, Mapping

from .levels import Key, Weighted, pooled, split_change


def log_change(before: float, now: float) -> float:
    """ln(now / before); both above zero."""
    return math.log(now / before)


def logarithmic_mean(one: float, other: float) -> float:
    """(one - other) / ln(one / other), both above zero: the weight of logarithmic mean Divisia decompositions.

    Ang, The LMDI approach to decomposition analysis, Energy Policy 33 (2005), 867-871.
    """
    ratio = one / other - 1.0
    # Near one the quotient loses its digits; its series does not.
    return (one + other) / 2 if abs(ratio) < 1e-9 else (one - other) / math.log1p(ratio)


def split_log_change(
    before: Mapping[Key, Weighted], now: Mapping[Key, Weighted], *, levels: int, enough: float
) -> list[float]:
    """Parts of ln(mean now / mean before), by level as `split_change` has them; both means are above zero."""
    moved = split_change(before, now, levels=levels, enough=enough)
    return log_parts(moved, pooled(before.values()).mean, pooled(now.values()).mean)


def log_parts(parts: Iterable[float], before: float, now: float) -> list[float]:
    """Parts of ln(now / before) in proportion to `parts`, which add up to now - before."""
    mean = logarithmic_mean(now, before)
    return [part / mean for part in parts]
