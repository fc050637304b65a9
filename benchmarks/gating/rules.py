"""Delivery rules that judge on held-out requests, and the one that judges nothing."""

from collections.abc import Sequence

import numpy as np

from ...policies.acceptance import Tally
from ...policies.learn_schedule import requests_since_a_change
from ...policies.paired import Paired
from ...policies.promotion import measure
from .view import View

#: Held-out requests looked at, and without which nothing is decided; confidence of the interval.
HOLDOUT_REQUESTS, MIN_REQUESTS, CONFIDENCE = 48, 8, 0.95
RESAMPLES = 2000


class NoGate:
    """The newest candidate goes live, always."""

    def decide(self, seen: View) -> int:
        """As Rule."""
        return seen.newest


class HeldOutGate:
    """Promotes when the interval of the gain on the last held-out requests lies above zero."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def decide(self, seen: View) -> int:
        """As Rule."""
        requests = self._judged_on(seen)
        tallies = zip(seen.tallies(seen.newest, requests), seen.tallies(seen.live, requests), strict=True)
        rng = np.random.default_rng([self._seed, seen.chunk])
        found = measure([Paired("", *pair) for pair in tallies], confidence=CONFIDENCE, rng=rng)
        return seen.newest if found.requests >= MIN_REQUESTS and found.interval[0] > 0.0 else seen.live

    def _judged_on(self, seen: View) -> list[int]:
        return seen.held_out()[-HOLDOUT_REQUESTS:]


class CutHeldOutGate(HeldOutGate):
    """The same on the held-out requests since traffic last changed, as ADWIN sees it in what was served."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._served: list[float] = []
        self._requests: list[int] = []

    def decide(self, seen: View) -> int:
        """As Rule."""
        claimed = seen.in_chunk(seen.chunk)
        for request, tally in zip(claimed, seen.tallies(seen.live, claimed), strict=True):
            if tally.rounds:
                self._served.append(tally.accepted / tally.rounds)
                self._requests.append(request)
        return super().decide(seen)

    def _judged_on(self, seen: View) -> list[int]:
        since = self._requests[-requests_since_a_change(self._served) :]
        first = since[0] if since else 0
        return [request for request in super()._judged_on(seen) if request >= first]


class RecentHeldOutGate:
    """A bootstrap of the last held-out requests in which the newer ones are drawn more often."""

    def __init__(self, seed: int, half_life_requests: float = 8.0) -> None:
        self._seed = seed
        self._half_life = half_life_requests

    def decide(self, seen: View) -> int:
        """As Rule."""
        requests = seen.held_out()[-HOLDOUT_REQUESTS:]
        counts = paired_counts(seen.tallies(seen.newest, requests), seen.tallies(seen.live, requests))
        weights = 0.5 ** (np.arange(len(counts))[::-1] / self._half_life)
        effective = round(weights.sum() ** 2 / (weights**2).sum()) if len(counts) else 0
        if effective < MIN_REQUESTS:
            return seen.live
        rng = np.random.default_rng([self._seed, seen.chunk])
        chosen = rng.choice(len(counts), (RESAMPLES, effective), p=weights / weights.sum())
        low = np.quantile(pooled_gains(counts[chosen].sum(1)), (1.0 - CONFIDENCE) / 2)
        return seen.newest if low > 0.0 else seen.live


def paired_counts(ours: Sequence[Tally], theirs: Sequence[Tally]) -> np.ndarray:
    """Accepted and rounds of both, int64[N, 4], of the requests with rounds on both sides."""
    rows = [(a.accepted, a.rounds, b.accepted, b.rounds) for a, b in zip(ours, theirs, strict=True)]
    return np.array([row for row in rows if row[1] and row[3]], np.int64).reshape(-1, 4)


def pooled_gains(sums: np.ndarray) -> np.ndarray:
    """Accept length of the first less the second of each row of `paired_counts` sums."""
    gains: np.ndarray = sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3]
    return gains
