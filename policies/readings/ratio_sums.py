"""RatioSums: accept length of many requests and its interval, from sums that can be added and subtracted."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter

#: Standard normal quantile of a two-sided 95 % interval.
Z_95 = 1.959964
#: Fewer requests give no interval: their spread is not known.
MIN_REQUESTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioSums:
    """Sums over stretches, one stretch being the rounds of one request with one draft; r rounds, a accepted drafts.

    Cumulative: the later minus the earlier is what happened in between.
    """

    requests: int = 0
    rounds: int = 0  # sum of r
    accepted: int = 0  # sum of a
    rounds_squared: int = 0  # sum of r * r
    rounds_accepted: int = 0  # sum of r * a
    accepted_squared: int = 0  # sum of a * a

    @classmethod
    def of(cls, rounds: int, accepted: int) -> "RatioSums":
        """Of one stretch."""
        return cls.of_row((1, rounds, accepted, rounds * rounds, rounds * accepted, accepted * accepted))

    @classmethod
    def of_row(cls, row: Iterable[int]) -> "RatioSums":
        """From its six sums, in the order of the fields, as counters hold them."""
        return cls(**dict(zip(_NAMES, row, strict=True)))

    def __add__(self, other: "RatioSums") -> "RatioSums":
        return RatioSums.of_row(a + b for a, b in zip(_SUMS(self), _SUMS(other), strict=True))

    def __sub__(self, other: "RatioSums") -> "RatioSums":
        return RatioSums.of_row(a - b for a, b in zip(_SUMS(self), _SUMS(other), strict=True))

    @property
    def accept_length(self) -> float | None:
        """Tokens per round, bonus token included; None without rounds."""
        return 1.0 + self.accepted / self.rounds if self.rounds else None

    @property
    def standard_error(self) -> float | None:
        """Of the accept length, requests drawn as wholes; None below MIN_REQUESTS requests."""
        return ratio_standard_error(
            self.requests,
            rounds=self.rounds,
            accepted=self.accepted,
            rounds_squared=self.rounds_squared,
            rounds_accepted=self.rounds_accepted,
            accepted_squared=self.accepted_squared,
        )

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the accept length, not below 1; None where no standard error is known."""
        length = self.accept_length
        error = self.standard_error
        if length is None or error is None:
            return None
        return max(length - Z_95 * error, 1.0), length + Z_95 * error


def ratio_standard_error(
    count: int,
    *,
    rounds: float,
    accepted: float,
    rounds_squared: float,
    rounds_accepted: float,
    accepted_squared: float,
) -> float | None:
    """Standard error of accepted / rounds, from sums over `count` stretches drawn as wholes.

    Linearised variance of a ratio (Cochran 1977, eq. 6.13). None below MIN_REQUESTS stretches, and without rounds.
    """
    if count < MIN_REQUESTS or not rounds:
        return None
    ratio = accepted / rounds
    residuals = accepted_squared - 2 * ratio * rounds_accepted + ratio**2 * rounds_squared
    return math.sqrt(max(residuals, 0.0) * count / (count - 1)) / rounds


#: All sums of one, in their order; dataclasses.astuple copies as it goes, and pages add thousands of these a second.
_NAMES = tuple(field.name for field in fields(RatioSums))
_SUMS = attrgetter(*_NAMES)
