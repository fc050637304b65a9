"""Which traces may be trained on, and how much each counts.

A trace of older target weights says what another model would have written; one tenant's flood should not drown the
rest; user content is kept no longer than it was allowed to be.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

#: Age of a target version that is not among those known.
UNKNOWN = -1


def is_expired(born_at_s: float, now_s: float, ttl_s: float) -> bool:
    """Whether a trace has outlived `ttl_s`. Times are unix seconds; `ttl_s` is a duration, and 0 disables expiry.

    `born_at_s` is by the server's clock and `now_s` by the learner's: their difference shifts every expiry.
    """
    return ttl_s > 0.0 and now_s - born_at_s > ttl_s


def known_targets(current: str, named: Sequence[str], max_age: int) -> tuple[str, ...]:
    """The target versions that may be trained on, oldest first: `current`, and those at most `max_age` before it.

    `named` is the target's history, oldest first and ending with `current`. Without one, versions that are whole
    numbers count down by one, as the steps of an RL run do. ValueError when the history ends otherwise, or when
    older versions are asked for and nothing says which they are.
    """
    if named and named[-1] != current:
        raise ValueError(f"got {','.join(named)}, expected a list that ends with the target's version {current!r}")
    if named or not max_age:
        return tuple(named[-(max_age + 1) :]) or (current,)
    if not (current.isascii() and current.isdecimal()) or str(int(current)) != current:
        raise ValueError(f"got no list of versions, expected one, since version {current!r} is no whole number")
    return tuple(str(number) for number in range(max(int(current) - max_age, 0), int(current) + 1))


def target_ages(versions: Sequence[str], targets: Sequence[str]) -> Int64s:
    """How many target versions older than the newest each is, int64[N]; UNKNOWN when it is not among `targets`.

    `targets` is oldest first; a version that was returned to counts from its last place.
    """
    place = {version: len(targets) - 1 - i for i, version in enumerate(targets)}
    return np.array([place.get(version, UNKNOWN) for version in versions], np.int64)


def age_weights(versions: Sequence[str], targets: Sequence[str]) -> Float64s:
    """How much a trace of each target version counts, float64[N]: half of the next younger one, the newest 1.

    One that is not among `targets` counts 0.
    """
    ages = target_ages(versions, targets)
    return np.where(ages == UNKNOWN, 0.0, np.power(0.5, np.maximum(ages, 0)))


def tenant_weights(tenants: Sequence[str], mass: Float64s, balance: float) -> Float64s:
    """A factor per trace, float64[N], 1 for the heaviest tenant, that gives every tenant the same share of `mass`.

    Inverse frequency, bounded: no factor is more than `balance`, so a tenant of one trace does not count as much as
    one of a thousand. Traces without a tenant ("") are one tenant.
    """
    # By number: an array of names pads every one to the longest, and clients choose them.
    numbers = {name: number for number, name in enumerate(dict.fromkeys(tenants))}
    place = np.array([numbers[name] for name in tenants], np.int64)
    totals = np.bincount(place, weights=mass, minlength=len(numbers))
    factors: Float64s = np.minimum(totals.max(initial=0.0) / np.maximum(totals, np.finfo(np.float64).tiny), balance)
    return factors[place]
