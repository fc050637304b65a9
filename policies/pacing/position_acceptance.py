"""How likely each draft of a round is accepted, from discounted counts per position."""

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul


class PositionAcceptance:
    """Chance that draft j is accepted given that those before it were, from discounted counts per position.

    Beta posterior means. Until a position weighs `prior_rounds` tries, the missing ones are assumed to go as at the
    position before it: what is not drafted for a while is assumed as good as the last position that is. Every round
    served weighs all earlier ones with `discount`. The first position keeps its mean and that weight at least, so
    that a draft that was switched off is remembered, and soon overruled when it is tried again.
    """

    def __init__(
        self, max_steps: int, *, discount: float = 0.995, prior: float = 0.5, prior_rounds: float = 4.0
    ) -> None:
        self._discount = discount
        self._prior = prior
        self._prior_rounds = prior_rounds
        self._means = [prior] * max_steps
        self._weights = [0.0] * max_steps

    def observe(self, steps: int, accepted: Sequence[int]) -> None:
        """Count rounds of `steps` drafts and how many of each were accepted; with 0 steps, only weights fall."""
        fade = self._discount ** len(accepted)
        tried = len(accepted)
        for j, (mean, weight) in enumerate(zip(self._means, self._weights, strict=True)):
            kept = weight * fade if j else min(weight, max(weight * fade, self._prior_rounds))
            if j < steps and tried:
                kept_drafts = sum(a > j for a in accepted)
                self._means[j] = (mean * kept + kept_drafts) / (kept + tried)
                kept = kept + tried
                tried = kept_drafts
            self._weights[j] = kept

    def forget(self) -> None:
        """Drop all counts, for another draft."""
        self._weights = [0.0] * len(self._weights)

    def chances(self, optimism: float = 0.0) -> list[float]:
        """Per position the mean or, with optimism, the upper end of Wilson's interval of so many standard deviations.

        Wilson's, since it stays above zero for a draft that was never accepted: a few tries do not condemn it.
        """
        found = []
        base = self._prior
        for mean, weight in zip(self._means, self._weights, strict=True):
            missing = max(self._prior_rounds - weight, 0.0)
            base = (mean * weight + base * missing) / (weight + missing)
            found.append(wilson_upper(base, weight + missing, optimism))
        return found

    def lengths(self, optimism: float = 0.0) -> list[float]:
        """Expected committed tokens per round with 0, 1, .. max_steps drafts: 1 + sum_j prod_{i <= j} chance_i."""
        return list(accumulate(accumulate(self.chances(optimism), mul), initial=1.0))


def wilson_upper(share: float, count: float, deviations: float) -> float:
    """Upper end of Wilson's score interval for a share seen over `count` tries; the share itself at 0 deviations."""
    z2 = deviations**2 / count
    return (share + z2 / 2 + math.sqrt(z2 * share * (1.0 - share) + z2**2 / 4)) / (1.0 + z2)
