"""Choose the length that commits most tokens per millisecond: paceline's default, and SmartSpec's rule beside it."""

from collections.abc import Mapping, Sequence

import numpy as np

from .pacing import PositionAcceptance, StepCosts, bucket_of


class GoodputPacing:
    """Goodput from measured costs and position-wise acceptance, with a bounded share of time spent on finding out.

        goodput(k) = batch * (1 + sum_{j <= k} prod_{i <= j} chance_i) / cost(bucket, k)

    Committed tokens over time as in SmartSpec, but every position has its own chance, since deep drafts are not as
    good as the first, and costs are measured where the server runs. Acceptance is the drafter's and shared by all
    batch sizes; costs belong to a bucket. Plain decoding is measured first and drafts run only where they are expected
    to beat it. Another length is tried when it might be better by `optimism` standard deviations and its cost is
    unknown or was measured long ago, while less than `explore_share` of the time in this bucket went into trials; so
    trials take that share of the time, at most, and `free_trials` steps to begin with.
    """

    def __init__(
        self,
        max_steps: int,
        *,
        explore_share: float = 0.03,
        optimism: float = 2.0,
        recheck_steps: int = 400,
        free_trials: int = 4,
    ) -> None:
        self._max_steps, self._explore_share, self._optimism = max_steps, explore_share, optimism
        self._recheck_steps, self._free_trials = recheck_steps, free_trials
        self._acceptance = PositionAcceptance(max_steps)
        self._costs = StepCosts(max_steps)
        self._time_ms: dict[int, float] = {}  # by bucket
        self._trials_ms: dict[int, list[float]] = {}  # number of trials, and their time
        self._steps_run: dict[int, int] = {}  # by bucket
        self._ran_at: dict[tuple[int, int], int] = {}  # bucket, length -> steps run in the bucket when it ran there

    def steps(self, batch_size: int) -> int:
        """The best length known, or one worth a trial. Changes nothing: what runs is told by `observe`."""
        bucket = bucket_of(batch_size)
        if 0 not in self._costs.measured(bucket):
            return 0
        trial = self._trial(bucket)
        return self._best(bucket) if trial is None else trial

    def observe(self, batch_size: int, steps: int, accepted: Sequence[int], cost_ms: float) -> None:
        """Counts acceptance and cost; time spent on another length than the best known one counts as a trial."""
        bucket = bucket_of(batch_size)
        trials = self._trials_ms.setdefault(bucket, [0.0, 0.0])
        if steps != self._best(bucket):
            trials[:] = trials[0] + 1, trials[1] + cost_ms
        self._time_ms[bucket] = self._time_ms.get(bucket, 0.0) + cost_ms
        self._ran_at[bucket, steps] = self._steps_run[bucket] = self._steps_run.get(bucket, 0) + 1
        self._acceptance.observe(steps, accepted)
        self._costs.observe(bucket, steps, cost_ms)

    def draft_changed(self) -> None:
        """Another draft serves from here on: acceptance is learnt anew, and every length may be tried again."""
        self._acceptance.forget()
        self._ran_at = {ran: at - self._recheck_steps for ran, at in self._ran_at.items()}

    def _best(self, bucket: int) -> int:
        """Of the lengths measured in the bucket, plain decoding at a tie; 0 before any."""
        lengths, costs = self._acceptance.lengths(), self._costs.measured(bucket)
        return max(costs, key=lambda k: lengths[k] / costs[k], default=0)

    def _trial(self, bucket: int) -> int | None:
        """The length worth a trial now: none while trials are over their share, or when none might be better."""
        count, spent_ms = self._trials_ms[bucket]
        if count >= self._free_trials and spent_ms > self._explore_share * self._time_ms[bucket]:
            return None
        best = self._best(bucket)
        costs, known = self._costs.predicted(bucket), self._costs.measured(bucket)
        hoped = [n / cost for n, cost in zip(self._acceptance.lengths(self._optimism), costs, strict=True)]
        sure = self._acceptance.lengths()[best] / costs[best]
        # A length that ran a while ago may cost something else by now; what nobody measures stays wrong for ever.
        open_lengths = [k for k in range(self._max_steps + 1) if k not in known or self._is_stale(bucket, k)]
        hopeful = [k for k in open_lengths if k != best and (hoped[k] > sure or k == 0)]
        return max(hopeful, key=hoped.__getitem__, default=None)

    def _is_stale(self, bucket: int, k: int) -> bool:
        return self._steps_run[bucket] - self._ran_at[bucket, k] >= self._recheck_steps


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

    def observe(self, batch_size: int, steps: int, accepted: Sequence[int], cost_ms: float) -> None:
        """Moves the acceptance rate by the drafts that were reached: those that stood and the first that did not."""
        del batch_size, cost_ms
        for stood in accepted if steps else ():
            reached = min(stood + 1, steps)
            kept = self._decay**reached
            self._acceptance = self._acceptance * kept + stood / reached * (1.0 - kept)

    def _goodput(self, batch_size: int, k: int) -> float:
        tokens = sum(self._acceptance**j for j in range(k + 1))
        cost_ms = float(self._weights @ np.array((1.0, k, batch_size * (k + 1))))
        return batch_size * tokens / max(cost_ms, 1e-9)
