"""Stop drafting when a rejection has become likely: the threshold rule of SpecDec++."""

from collections.abc import Iterable, Sequence

from .base import PositionAcceptance


def stop_length(chances: Iterable[float], threshold: float) -> int:
    """Drafts proposed until 1 - prod_i chance_i exceeds `threshold`, the draft that exceeds it left out.

    SpecDec++ (Huang, Guo, Wang, arXiv 2405.19715) stops when the predicted probability that at least one proposed
    token is rejected exceeds a threshold, and shows that an optimal policy has this form. There a trained head predicts
    each chance; here they are the caller's.
    """
    survival, length = 1.0, 0
    for chance in chances:
        survival *= chance
        if 1.0 - survival > threshold:
            break
        length += 1
    return length


class ThresholdPacing:
    """`stop_length` for a whole batch, at least one draft.

    Servers that draft in fixed-length graphs cannot stop one request at one token, so the confidence used is what the
    last rounds say about each position.
    """

    def __init__(self, max_steps: int, *, threshold: float = 0.7) -> None:
        self._threshold = threshold
        self._acceptance = PositionAcceptance(max_steps)

    def steps(self, batch_size: int) -> int:
        """The longest draft that is accepted whole with a chance of at least 1 - threshold."""
        del batch_size
        return max(stop_length(self._acceptance.chances(), self._threshold), 1)

    def observe(self, batch_size: int, steps: int, accepted: Sequence[int], cost_ms: float | None) -> None:
        """Counts acceptance by position and ignores the cost."""
        del batch_size, cost_ms
        self._acceptance.observe(steps, accepted)

    def draft_changed(self) -> None:
        """Forgets the acceptance of the draft before."""
        self._acceptance.forget()
