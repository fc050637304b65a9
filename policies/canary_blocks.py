"""Is a canary worse than live requests of the same minutes, whatever traffic does meanwhile? A likelihood of orders.

Requests come in blocks of the same minutes. Traffic may change from block to block, but within one, under equal drafts,
any request may as well have gone to the other arm: every assignment of the arms to the ordered begins of a block is
equally likely. Against that stands a canary that begins lower: where F is the share of live begins above a value,
F^w is that of its own, w > 1 (Lehmann, The power of rank tests, 1953). Then the order from the lowest begin up is that
of Plackett and Luce, in which each next one is drawn with weight w from the canary and 1 from the live version, and the
ratio of both likelihoods is, for a block of N (Savage 1956),

    product over places i of  (N - i + 1) weight_i / (sum of the weights from place i on)

The ratio for a growing set of begins, in whatever order they come to be known, is a martingale under equal drafts, and
so is its product over blocks. It starts at 1, so it ever reaches 1 / a with a chance of at most a (Ville 1939).
"""

import math
from bisect import insort
from collections.abc import Sequence
from hashlib import blake2b

#: w. Drafts that keep a fifth or a half of what was accepted are both found sooner with it than with 2, 9, or a mean.
WEIGHT = 4.0


class BlockTest:
    """The capital of one length of begins. Equal begins are ordered by a digest of the request's id, as a coin toss."""

    def __init__(self) -> None:
        self.log_capital = 0.0
        self.highest_log_capital = 0.0
        self._begins: list[tuple[float, bytes, bool]] = []  # of this block, ascending; whether it is the canary's
        self._closed = 0.0  # what earlier blocks have won

    def start_block(self) -> None:
        """What follows is of other minutes; the capital stays."""
        self._closed += log_ratio([is_canary for *_, is_canary in self._begins])
        self._begins.clear()

    def add(self, request_id: str, accepted_per_round: float, *, is_canary: bool) -> None:
        """How a request of this block began. It counts with the next `compare`."""
        insort(self._begins, (accepted_per_round, blake2b(request_id.encode(), digest_size=8).digest(), is_canary))

    def compare(self) -> None:
        """Move the capital by what was added."""
        self.log_capital = self._closed + log_ratio([is_canary for *_, is_canary in self._begins])
        self.highest_log_capital = max(self.highest_log_capital, self.log_capital)


def log_ratio(arms: Sequence[bool]) -> float:
    """Logarithm of the ratio above; `arms`, from the lowest begin up: whether it is the canary's."""
    canaries = sum(arms)
    log, left = canaries * math.log(WEIGHT) + math.lgamma(len(arms) + 1), len(arms) + (WEIGHT - 1.0) * canaries
    for is_canary in arms:
        log -= math.log(left)
        left -= WEIGHT if is_canary else 1.0
    return log
