"""SmartSpec's rule: goodput from one acceptance rate and a linear cost model, fitted to a profile taken beforehand."""

from collections.abc import Mapping, Sequence

import numpy as np


class SmartSpecPacing:
    """SmartSpec (Liu et al., arXiv 2406.14066): expected goodput from one acceptance rate and a linear cost model.

        tokens(k) = batch * (1 - a^(k+1)) / (1 - a)          a: moving average of the acceptance of one draft
        cost(batch, k) = c0 + c1 * k + c2 * batch * (k + 1)  fitted to a profile taken beforehand

    Chosen here: chains without a per-request length, context length left out of the cost, since the profile has none,
    and no way back: at k = 0 nothing feeds the average, so a drafter that was switched off is not tried again.
    """

    def __init__(
        self,
        max_steps: int,
        profile_ms: Mapping[tuple[int, int], float],
        *,
        acceptance: float = 0.7,
        decay: float = 0.99,
    ) -> None:
        """`profile_ms` is (batch size, steps) -> milliseconds; `acceptance` is what is thought before any round."""
        self._max_steps, self._acceptance, self._decay = max_steps, acceptance, decay
        rows = np.array([(1.0, k, batch * (k + 1)) for batch, k in profile_ms])
        self._weights = np.linalg.lstsq(rows, np.array(list(profile_ms.values())), rcond=None)[0]

    def steps(self, batch_size: int) -> int:
        """The length with the highest expected goodput, the shortest of equals."""
        return max(range(self._max_steps + 1), key=lambda k: self._goodput(batch_size, k))

    def observe(self, batch_size: int, steps: int, accepted: Sequence[int], cost_ms: float | None) -> None:
        """Move the acceptance rate by the drafts that were reached: the accepted ones and the first rejected one."""
        del batch_size, cost_ms
        for drafts in accepted if steps else ():
            reached = min(drafts + 1, steps)
            kept = self._decay**reached
            self._acceptance = self._acceptance * kept + drafts / reached * (1.0 - kept)

    def draft_changed(self) -> None:
        """Changes nothing: SmartSpec keeps one average across drafts."""

    def _goodput(self, batch_size: int, k: int) -> float:
        tokens = sum(self._acceptance**j for j in range(k + 1))
        cost_ms = float(self._weights @ np.array((1.0, k, batch_size * (k + 1))))
        return batch_size * tokens / max(cost_ms, 1e-9)
