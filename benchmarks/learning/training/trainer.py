"""Production's trainer, with what rows of the bench vary about scoring and about the draws of replayed traces.

Axes as in learner/training/batch.py; N traces of the replay buffer.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ....buffer.trace import DraftTrace
from ....learner.model.eagle3 import Eagle3Draft
from ....learner.training.scoring import BatchScores
from ....learner.training.trainer import DraftTrainer, FitReport
from ....policies.objectives.baselines.names import Baseline
from ....policies.objectives.baselines.table import BENCH_OBJECTIVES
from ....policies.objectives.names import Weighting
from .frozen_copy import copied, frozen
from .labels import labelled_batch
from .plan import BenchPlan
from .replay_weights import favoured
from .scoring import score_all
from .served_rounds import ServedRounds, collate_rounds, sharpened_rounds
from .verdicts import collate_verdicts


class BenchTrainer(DraftTrainer):
    """Trains one draft under one row of the bench. Its saved state is production's: a reference is not in it."""

    def __init__(self, draft: Eagle3Draft, bench_plan: BenchPlan, reference: Eagle3Draft | None = None) -> None:
        """`reference`, a draft of the same target, is what objectives that need one compare with: for AdaSPEC one
        distilled with forward KL, for GTO the one it starts from, for REINFORCE the one that proposed. A frozen copy
        is kept. Left out, it is `draft` as it is now; under REINFORCE as it is at the start of each fit; for AdaSPEC a
        copy of `draft` that learns with it, every fit by forward KL before `draft` is trained.
        """
        super().__init__(draft, bench_plan.product, recipe=bench_plan.recipe)
        self.bench_plan, self._spec = bench_plan, BENCH_OBJECTIVES[bench_plan.objective]
        self._follows_draft = reference is None and bench_plan.objective == Baseline.REINFORCE
        distils = reference is None and bench_plan.distils_reference
        self._distiller = BenchTrainer(copied(draft), bench_plan.of_reference) if distils else None
        compared = draft if reference is None else reference
        self._reference = frozen(compared) if self._spec.needs_reference else None

    def fit(
        self, fresh: Sequence[DraftTrace], replay: Sequence[DraftTrace], part_tokens: int | None = None
    ) -> FitReport:
        """As production's; the seconds are those of a reference that learns with the draft, too."""
        if self._distiller is None:
            if self._follows_draft:
                self._reference = frozen(self.draft)
            return super().fit(fresh, replay, part_tokens)
        taught = self._distiller.fit(fresh, replay, part_tokens)
        self._reference = frozen(self._distiller.draft)
        report = super().fit(fresh, replay, part_tokens)
        return replace(report, seconds=taught.seconds + report.seconds)

    @property
    def _weighting(self) -> Weighting:
        fixed = self.bench_plan.weighting
        return super()._weighting if fixed is None else Weighting(fixed)

    def _replay_log_weights(self, replay: Sequence[DraftTrace]) -> Tensor | None:
        plan = self.bench_plan
        if not plan.recency_half_life_traces and not plan.replay_errors:
            return super()._replay_log_weights(replay)
        start_N = super()._replay_log_weights(replay)
        even_N = torch.zeros(len(replay), dtype=torch.float64)
        return favoured(replay, even_N if start_N is None else start_N, plan)

    def _score(self, traces: Sequence[DraftTrace]) -> BatchScores:
        plan, spec, device = self.bench_plan, self._spec, self.draft.device
        weight = self._context_weight
        batch = labelled_batch(traces, self.draft, spec, plan.teacher_temperature, with_context=weight > 0.0)
        verdicts = collate_verdicts(traces, device) if spec.needs_verdicts else None
        rounds = self._rounds(traces)
        with self._autocast():
            return score_all(
                self.draft,
                batch,
                plan.steps,
                self._weighting,
                plan.objective,
                reference=self._reference,
                verdicts=verdicts,
                rounds=rounds,
                off_path_weight=plan.off_path_weight,
                context_weight=weight,
            )

    def _rounds(self, traces: Sequence[DraftTrace]) -> ServedRounds | None:
        """The served rounds that the plan scores beside the committed text; None: it scores none."""
        plan, is_mixed = self.bench_plan, self._spec.needs_served_rounds
        if not is_mixed and not plan.off_path_weight:
            return None
        rounds = collate_rounds(traces, self.draft.device, plan.steps, rejected_only=not is_mixed)
        return sharpened_rounds(rounds, plan.teacher_temperature)
