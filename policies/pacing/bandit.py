"""TLT's bandit: epsilon-greedy on measured goodput among the lengths that a batch-size bucket offers."""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from .base import bucket_of

#: First batch size of a bucket -> lengths offered: fewer where a batch is large, as in TLT.
BANDIT_ARMS: Mapping[int, tuple[int, ...]] = {1: (5, 7), 2: (3, 5), 5: (1, 3), 21: (0, 1)}


class BanditPacing:
    """Bucketed epsilon-greedy (BEG-MAB) of TLT (Hu et al., arXiv 2511.16665; its release is mit-han-lab/fastrl).

    The reward of a length is the median, over its last `window` steps in the bucket, of committed tokens per
    millisecond; a length never tried is tried first, in the order offered. With chance `epsilon` a length of the bucket
    is drawn instead. Chosen here: chains alone (TLT also chooses widths), rewards kept per bucket, and goodput as
    measured, where the release smooths the accepted length in it.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        arms: Mapping[int, Sequence[int]] = BANDIT_ARMS,
        *,
        epsilon: float = 0.1,
        window: int = 1000,
    ) -> None:
        self._rng, self._epsilon, self._buckets = rng, epsilon, sorted(arms)
        self._rewards = {begin: {k: deque[float](maxlen=window) for k in arms[begin]} for begin in self._buckets}

    def steps(self, batch_size: int) -> int:
        """Draws from the generator once or twice, unless the bucket offers one length."""
        offered = self._rewards[bucket_of(batch_size, self._buckets)]
        if len(offered) > 1 and self._rng.random() < self._epsilon:
            return list(offered)[int(self._rng.integers(len(offered)))]
        scores = {k: float(np.median(rewards)) if rewards else float("inf") for k, rewards in offered.items()}
        return max(scores, key=scores.__getitem__)

    def observe(self, batch_size: int, steps: int, accepted: Sequence[int], cost_ms: float | None) -> None:
        """One reward for the length that ran, if the bucket offers it and the cost is known."""
        rewards = self._rewards[bucket_of(batch_size, self._buckets)].get(steps)
        if rewards is not None and cost_ms is not None and cost_ms > 0.0:
            rewards.append((sum(accepted) + len(accepted)) / cost_ms)

    def draft_changed(self) -> None:
        """Changes nothing: rewards are kept across drafts."""
