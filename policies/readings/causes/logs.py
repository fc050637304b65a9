"""Changes of logarithms, and how the parts of a change become parts of the logarithm's change."""

import math
from collections.abc import Iterable


def log_change(before: float, now: float) -> float:
    """ln(now / before); both above zero."""
    return math.log(now / before)


def logarithmic_mean(one: float, other: float) -> float:
    """(one - other) / ln(one / other), both above zero: the weight of logarithmic mean Divisia decompositions.

    Ang, The LMDI approach to decomposition analysis, Energy Policy 33 (2005), 867-871.
    """
    ratio = one / other - 1.0
    # Near one the quotient loses its digits; its series does not.
    return (one + other) / 2 if abs(ratio) < 1e-9 else (one - other) / math.log1p(ratio)  # noqa: PLR2004


def log_parts(parts: Iterable[float], before: float, now: float) -> list[float]:
    """Parts of ln(now / before) in proportion to `parts`, which add up to now - before."""
    mean = logarithmic_mean(now, before)
    return [part / mean for part in parts]
