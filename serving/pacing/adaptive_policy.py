"""Implements SGLang's AdaptiveSpecPolicy with a pacing policy of paceline."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from ...buffer.board.member_status import PacingSaid
from ...policies.pacing.policy import Pacing
from ...policies.pacing.step_costs import CostTable, StepCosts, bucket_of
from ..clock.step_meter import Meter, StepMeter, Verified
from .goodput_tally import GoodputTally

log = logging.getLogger(__name__)


class PacelineAdaptivePolicy:
    """SGLang's AdaptiveSpecPolicy (srt/speculative/adaptive_runtime_state.py), for the scheduler thread.

    Every length may run at every batch size, so CUDA graphs are captured for all of them. `rank_costs`, a table,
    replaces this process's own clock, which no other rank shares. A fault ends pacing for good, with `static_steps`
    from then on: it is logged once, and costs no token. No method raises.
    """

    def __init__(
        self,
        policy: Pacing,
        lengths: Sequence[int],
        static_steps: int,
        rank_costs: CostTable | None = None,
        *,
        reports_per_batch_size: bool = False,
        meter: Meter | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`lengths` ascending, `static_steps` one of them. Costs are by bucket, or by batch size on request.

        `meter` times the steps; without one, `clock` does.
        """
        self._policy = policy
        self._lengths = tuple(lengths)
        self._static_steps = static_steps
        self._rank_costs = rank_costs
        self._reports_per_batch_size = reports_per_batch_size
        self._meter: Meter = meter or StepMeter(clock)
        self._graph_sizes: list[int] | None = None
        self._chosen: defaultdict[int, Counter[int]] = defaultdict(Counter)  # bucket -> steps -> decode steps
        self._costs = StepCosts(lengths)
        self._goodput = GoodputTally()  # of the draft that serves now
        self.faults = 0
        self.reason = ""  # why pacing has ended; empty while it has not

    @property
    def candidate_steps(self) -> list[int]:
        """Lengths that SGLang prepares for."""
        return list(self._lengths)

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Batch sizes that graphs are captured for; None without graphs."""
        self._graph_sizes = sorted(cuda_graph_bs) if cuda_graph_bs else None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """All of them, whatever the length."""
        del step
        return self._graph_sizes and list(self._graph_sizes)

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Draft steps of the decode step that begins now."""
        if self.reason:
            return self._static_steps
        try:
            steps = self._offered(self._policy.steps(batch_size))
            self._meter.launch(batch_size, steps)
            self._chosen[bucket_of(batch_size)][steps] += 1
        except Exception as fault:  # noqa: BLE001 - an exception here would kill SGLang's scheduler
            self.end(fault)
            return self._static_steps
        return steps

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> None:
        """A decode step was verified. Returns None: SGLang switches at the start of the next one, not here."""
        if self.reason:
            return
        try:
            verified = self._meter.verify(batch_size)
            if verified is not None:
                self._observe(batch_size, verified, num_correct_drafts_per_req)
        except Exception as fault:  # noqa: BLE001 - an exception here would kill SGLang's scheduler
            self.end(fault)

    def interrupt(self) -> None:
        """Something other than a decode step begins."""
        self._meter.interrupt()

    def draft_changed(self) -> None:
        """Other weights draft from now on."""
        try:
            self._goodput = GoodputTally()
            self._meter.interrupt()  # the copy was no part of a decode step
            self._policy.draft_changed()
        except Exception as fault:  # noqa: BLE001 - an exception here would kill SGLang's scheduler
            self.end(fault)

    def said(self) -> PacingSaid:
        """What was chosen and what it cost; any thread may ask."""
        chosen = {b: dict(counts) for b, counts in dict(self._chosen).items()}
        return PacingSaid(
            steps={str(b): {str(k): n for k, n in sorted(row.items())} for b, row in sorted(chosen.items())},
            cost_ms={str(b): {str(k): ms for k, ms in row.items()} for b, row in self._costs.medians().items()},
            goodput=self._goodput.said(),
            unmatched=self._meter.unmatched,
            faults=self.faults,
            reason=self.reason,
        )

    def _observe(self, batch_size: int, verified: Verified, accepted: list[int]) -> None:
        cost_ms = verified.cost_ms
        if cost_ms is not None:
            self._costs.observe(
                batch_size if self._reports_per_batch_size else bucket_of(batch_size), verified.steps, cost_ms
            )
            self._goodput.add(bucket_of(batch_size), verified.steps, sum(accepted) + batch_size, cost_ms)
        if self._rank_costs is not None:
            cost_ms = self._rank_costs.cost_ms(batch_size, verified.steps)
        self._policy.observe(batch_size, verified.steps, accepted, cost_ms)

    def _offered(self, steps: int) -> int:
        """The longest of the lengths that is no longer than `steps`, else the shortest: policies may know others."""
        return max((k for k in self._lengths if k <= steps), default=self._lengths[0])

    def end(self, fault: Exception) -> None:
        """End pacing for good because of `fault`, which is logged once."""
        self.faults += 1
        if not self.reason:
            self.reason = f"{type(fault).__name__}: {fault}"
            log.error("paceline: pacing has ended, %d steps from now on", self._static_steps, exc_info=fault)
