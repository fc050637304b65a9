"""Is a canary worse than live requests of the same minutes, whatever traffic does? A likelihood of orders, in blocks.

Requests come in blocks of the same minutes. Traffic may change from block to block, and within one, as long as requests
of every moment may as well have gone to the other arm: then, under equal drafts, every assignment of the arms to the
ordered begins of a block is equally likely. Against that stands a canary that begins lower: where F is the share of
live begins above a value, F^w is that of its own, w > 1 (Lehmann, The power of rank tests, 1953). Then the order from
the lowest begin up is that of Plackett and Luce, in which each next one is drawn with weight w from the canary and 1
from the live version, and the ratio of both likelihoods is, for a block of N (Savage 1956),

    product over places i of  (N - i + 1) weight_i / (sum of the weights from place i on)

The ratio for a growing set of begins, in whatever order they come to be known, is a martingale under equal drafts, and
so are its product over blocks and the mean of that over several w. They start at 1, so they ever reach 1 / a with a
chance of at most a (Ville 1939).
"""

import math
from bisect import insort
from collections.abc import Sequence
from hashlib import blake2b

from .canary_harm import log_mean_exp

#: w, from drafts that keep half of what was accepted to those that keep next to nothing.
WEIGHTS = (4.0, 16.0)
#: Begins of either arm with which a block is full. In longer ones the arms' shares of traffic may change.
BLOCK_BEGINS = 8


class BlockTest:
    """The capital of one length of begins. Equal begins are ordered by a digest of the request's id, as a coin toss."""

    def __init__(self) -> None:
        self.log_capital = 0.0
        self.highest_log_capital = 0.0
        self._begins: list[tuple[float, bytes, bool]] = []  # of this block, ascending; whether it is the canary's
        self._closed = [0.0] * len(WEIGHTS)  # what earlier blocks have won

    @property
    def is_full(self) -> bool:
        """Whether the next live begin belongs to another block."""
        canaries = sum(self._arms)
        return min(canaries, len(self._begins) - canaries) >= BLOCK_BEGINS

    def start_block(self) -> None:
        """What follows is of other minutes; the capital stays."""
        self._closed = self._logs()
        self._begins.clear()

    def add(self, request_id: str, accepted_per_round: float, *, is_canary: bool) -> None:
        """How a request of this block began. It counts with the next `compare`."""
        insort(self._begins, (accepted_per_round, blake2b(request_id.encode(), digest_size=8).digest(), is_canary))

    def compare(self) -> None:
        """Move the capital by what was added."""
        self.log_capital = log_mean_exp(self._logs())
        self.highest_log_capital = max(self.highest_log_capital, self.log_capital)

    @property
    def _arms(self) -> list[bool]:
        return [is_canary for *_, is_canary in self._begins]

    def _logs(self) -> list[float]:
        return [won + log_ratio(self._arms, weight) for won, weight in zip(self._closed, WEIGHTS, strict=True)]


def log_ratio(arms: Sequence[bool], weight: float) -> float:
    """Logarithm of the ratio above; `arms`, from the lowest begin up: whether it is the canary's."""
    canaries = sum(arms)
    log = canaries * math.log(weight) + math.lgamma(len(arms) + 1)
    left = len(arms) + (weight - 1.0) * canaries
    for is_canary in arms:
        log -= math.log(left)
        left -= weight if is_canary else 1.0
    return log
