"""Choose the length that commits most tokens per millisecond."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .position_acceptance import PositionAcceptance
from .step_costs import CostTable, StepCosts, bucket_of

#: Of the shortest length, before another one is tried in a bucket: the median of three survives one hiccup.
FIRST_MEASURES = 3
#: Of the step, that one more draft costs at the least: its own forward and a token more to verify.
DRAFT_SHARE = 0.02
#: Of its kind, that a trial without a cost is taken for: before it, the draft had to read what it had missed.
UNTIMED_TRIAL = 2.0
#: Trials in vain that halve the share of time for further ones.
VAIN_TRIALS = 8
#: The share of time for trials falls no lower than by this, however many were in vain.
LEAST_SHARE = 1 / 6


@dataclass(slots=True, kw_only=True)
class Trials:
    """What the steps of one bucket took, and those of them that were trials. For one draft."""

    time_ms: float = 0.0
    trials_ms: float = 0.0
    count: int = 0
    in_vain: int = 0  # trials since the last one that changed which length is best
    untimed: int | None = None  # length of the step before, when that was a trial without a cost: it goes on once

    def may_try(self, share: float, free: int) -> bool:
        """Whether a trial may begin: the first `free` always, later ones while they took their share of the time.

        That is `share` after a trial that changed something, and less after every further one in vain.
        """
        share *= max(VAIN_TRIALS / (VAIN_TRIALS + self.in_vain), LEAST_SHARE)
        return self.count < free or self.trials_ms <= share * self.time_ms


class GoodputPacing:
    """Goodput from measured costs and position-wise acceptance, with a bounded share of time spent on trials.

        goodput(k) = batch * (1 + sum_{j <= k} prod_{i <= j} chance_i) / cost(bucket, k)

    Committed tokens over time as in SmartSpec, but every position has its own chance, since deep drafts are not as
    good as the first, and costs are measured where the server runs. Acceptance is the drafter's and shared by all
    batch sizes; costs belong to a bucket. The shortest length, plain decoding where it is offered, is measured first,
    FIRST_MEASURES times: every other length is compared with it, and after a single slow step each would look better.
    Longer slowness is noticed too: costs are compared at one pace of the machine (StepCosts), and none is believed that
    is above a longer length's (with_shorter_cheaper). Other lengths run only where they are expected to beat it.
    Another length is tried when it might be better by `optimism` standard deviations and its cost is unknown or was
    measured long ago, while less than `explore_share` of the time in this bucket went into trials; so trials of a draft
    take that share of the time, at most, and `free_trials` steps to begin with. The share falls while they show nothing
    new, since a draft that does not pay now will hardly pay in a moment. A trial that was not timed, since the draft
    read what it had missed meanwhile, is counted all the same. The first step of a length in a bucket is taken for one
    that was not timed: kernels are compiled then, which takes as long as a hundred steps. With a table of costs none is
    unknown.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        table: CostTable | None = None,
        *,
        explore_share: float = 0.03,
        optimism: float = 2.0,
        recheck_steps: int = 400,
        free_trials: int = 8,
    ) -> None:
        self._lengths = tuple(sorted(lengths))
        self._explore_share = explore_share
        self._optimism = optimism
        self._recheck_steps = recheck_steps
        self._free_trials = free_trials
        self._acceptance = PositionAcceptance(self._lengths[-1])
        self._is_table = table is not None
        self._costs = StepCosts(self._lengths, table)
        self._trials: dict[int, Trials] = {}  # by bucket
        self._steps_run: dict[int, int] = {}  # by bucket
        self._ran_at: dict[tuple[int, int], int] = {}  # bucket, length -> steps run in the bucket when it ran there
        self._met = set[tuple[int, int]]()  # bucket, length

    def steps(self, batch_size: int) -> int:
        """The best length known, or one worth a trial. Changes nothing: `observe` reports what ran."""
        bucket = bucket_of(batch_size)
        if not self._is_table and self._costs.count(bucket, self._lengths[0]) < FIRST_MEASURES:
            return self._lengths[0]
        trial = self._trial(bucket)
        return self._best(bucket) if trial is None else trial

    def observe(self, batch_size: int, steps: int, accepted: Sequence[int], cost_ms: float | None) -> None:
        """Count acceptance and cost; time spent on another length than the best known one counts as a trial."""
        bucket = bucket_of(batch_size)
        best = self._best(bucket)
        if (bucket, steps) not in self._met:
            self._met.add((bucket, steps))
            cost_ms = None
        if cost_ms is not None:
            self._ran_at[bucket, steps] = self._steps_run[bucket] = self._steps_run.get(bucket, 0) + 1
            self._costs.observe(bucket, steps, cost_ms)
        self._acceptance.observe(steps, accepted)
        self._count(bucket, steps, best, cost_ms)

    def draft_changed(self) -> None:
        """Forgets acceptance and trials, keeps costs, and lets every length be tried again."""
        self._acceptance.forget()
        self._trials.clear()
        self._ran_at = {ran: at - self._recheck_steps for ran, at in self._ran_at.items()}

    def _count(self, bucket: int, steps: int, best: int, cost_ms: float | None) -> None:
        """A step that was a trial unless it took the length that was `best` before it."""
        trials = self._trials.setdefault(bucket, Trials())
        is_untimed = cost_ms is None and steps != best
        if cost_ms is None:
            cost_ms = 0.0 if steps == best else UNTIMED_TRIAL * self._costs.predicted(bucket).get(steps, 0.0)
        trials.time_ms += cost_ms
        trials.untimed = steps if is_untimed and trials.untimed is None else None
        if steps != best:
            trials.count += 1
            trials.trials_ms += cost_ms
            trials.in_vain = trials.in_vain + 1 if self._best(bucket) == best else 0

    def _known(self, bucket: int) -> Mapping[int, float]:
        """Steps -> milliseconds of what may be chosen without a trial."""
        return self._costs.predicted(bucket) if self._is_table else with_shorter_cheaper(self._costs.measured(bucket))

    def _best(self, bucket: int) -> int:
        """Of the lengths known in the bucket, the shortest of equals; the shortest of all before any is."""
        tokens = self._acceptance.lengths()
        costs = self._known(bucket)
        return max(costs, key=lambda k: tokens[k] / costs[k], default=self._lengths[0])

    def _trial(self, bucket: int) -> int | None:
        """The length worth a trial now: none while trials are over their share, or when none might be better."""
        trials = self._trials.get(bucket, Trials())
        if trials.untimed is not None:
            return trials.untimed
        if not trials.may_try(self._explore_share, self._free_trials):
            return None
        best = self._best(bucket)
        known = self._known(bucket)
        costs = self._costs.predicted(bucket)
        tokens = self._acceptance.lengths(self._optimism)
        sure = self._acceptance.lengths()[best] / costs[best]
        # A length that ran a while ago may cost something else by now; what nobody measures stays wrong for ever.
        open_lengths = [k for k in self._lengths if k not in known or self._is_stale(bucket, k)]
        hoped = {k: tokens[k] / costs[k] for k in open_lengths if k != best}
        hopeful = [k for k in hoped if hoped[k] > sure or k == self._lengths[0]]
        return max(hopeful, key=hoped.__getitem__, default=None)

    def _is_stale(self, bucket: int, k: int) -> bool:
        return self._steps_since(bucket, k) >= self._recheck_steps

    def _steps_since(self, bucket: int, k: int) -> int:
        """Measured steps in this bucket since `k` ran there; all of them when it never did."""
        return self._steps_run.get(bucket, 0) - self._ran_at.get((bucket, k), 0)


def with_shorter_cheaper(costs: Mapping[int, float]) -> dict[int, float]:
    """`costs` (steps -> milliseconds, fewest steps first) with none above what a longer length leaves for it.

    More drafts are more work, each DRAFT_SHARE of what comes before it at least. So where a shorter length was measured
    as no cheaper than a longer one, something else slowed it down, and it costs less than that.
    """
    found: dict[int, float] = {}
    least_ms = math.inf
    longer = 0
    for k in sorted(costs, reverse=True):
        least_ms = min(costs[k], least_ms / (1.0 + DRAFT_SHARE) ** (longer - k))
        found[k] = least_ms
        longer = k
    return dict(reversed(found.items()))
