"""Which traces may be trained on, and how much each counts.

A trace of older target weights tells what another model would have said; one tenant's flood should not drown the
rest; user content is kept no longer than it was allowed to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..buffer.trace import DraftTrace

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

#: Age of a target version that is not among those known.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class FreshnessRules:
    """The numbers. ValueError when one is out of its range."""

    max_age: int = 0  # target versions behind the newest that may still be trained on; 0: the newest alone
    half_life: float = 1.0  # target versions after which a trace counts half
    balance: float = 4.0  # at most so many times does one trace count what another does for its tenant's sake; 1: off
    ttl_s: float = float("inf")  # seconds after birth

    def __post_init__(self) -> None:
        if self.max_age < 0 or self.half_life <= 0.0 or self.balance < 1.0 or not self.ttl_s > 0.0:
            raise ValueError(f"rules: got {self}, expected max_age >= 0, half_life > 0, balance >= 1, ttl_s > 0")


@dataclass(frozen=True, slots=True, eq=False)
class Freshness:
    """How much each trace counts, and why some do not; every trace that weighs 0 is in exactly one count."""

    weights: Float64s  # [N] mean 1 over the traces that count; 0: must not be trained on
    expired: int  # past their time to live
    unknown_target: int  # judged by target weights that nobody named
    old_target: int  # judged by target weights too old


def weigh(traces: Sequence[DraftTrace], targets: Sequence[str], now_s: float, rules: FreshnessRules) -> Freshness:
    """Weights of `traces` at `now_s` (unix seconds). `targets` are the target versions in use, oldest first.

    A trace counts 0.5 ** (age / half_life) times its tenant's weight; tenants are balanced among the traces that
    count at all, after their age was taken into account.
    """
    ages = target_ages([trace.target_version for trace in traces], targets)
    born_s = np.array([trace.born_at for trace in traces], np.float64)
    is_expired = now_s - born_s > rules.ttl_s
    is_unknown = ~is_expired & (ages == UNKNOWN)
    is_old = ~is_expired & (ages > rules.max_age)
    kept = np.flatnonzero(~(is_expired | is_unknown | is_old))
    weights = np.zeros(len(traces))
    aged: Float64s = np.power(0.5, ages[kept] / rules.half_life)
    found = aged * tenant_weights([traces[i].tenant for i in kept.tolist()], aged, rules.balance)
    weights[kept] = found / found.mean() if len(kept) else found
    return Freshness(weights, int(is_expired.sum()), int(is_unknown.sum()), int(is_old.sum()))


def target_ages(versions: Sequence[str], targets: Sequence[str]) -> Int64s:
    """How many target versions behind the newest each is, int64[N]; UNKNOWN when it is not among `targets`.

    `targets` is oldest first; a version that was returned to counts from its last place.
    """
    place = {version: len(targets) - 1 - i for i, version in enumerate(targets)}
    return np.array([place.get(version, UNKNOWN) for version in versions], np.int64)


def tenant_weights(tenants: Sequence[str], mass: Float64s, balance: float) -> Float64s:
    """A factor per trace, float64[N], 1 for the heaviest tenant, that gives every tenant the same share of `mass`.

    Inverse frequency, bounded: no factor is more than `balance`, so a tenant of one trace is not heard as loudly as
    one of a thousand. Traces without a tenant ("") are one tenant.
    """
    # By number: an array of names gives every one the room of the longest, and clients choose them.
    numbers = {name: number for number, name in enumerate(dict.fromkeys(tenants))}
    place = np.array([numbers[name] for name in tenants], np.int64)
    totals = np.bincount(place, weights=mass, minlength=len(numbers))
    factors: Float64s = np.minimum(totals.max(initial=0.0) / np.maximum(totals, np.finfo(np.float64).tiny), balance)
    return factors[place]
