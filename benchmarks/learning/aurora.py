"""Aurora's released training (arXiv 2602.06932), to compare the product with.

    sum_i 0.8^i mean over valid positions of [ -sum_v p(v) log q_i(v) ]

From aurora/models/eagle3.py and ops/loss.py of its release (the paper also trains on discarded drafts, the release
does not): every draft step has its own mean over the accepted text, that is all tokens that were committed, the
target's own among them; p is at temperature 1 whatever the request's; it is taken over the draft's vocabulary, and
positions whose most likely token is outside are not valid. Chosen here: prompt positions, which no verdict belongs to,
are left out; AdamW as everywhere in this bench.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ...buffer.stream.trace import DraftTrace, Sampling
from ...learner.model.draft import Draft
from ...learner.training.batch import collate, verdict_rows
from ...learner.training.batch_sampling import draw_batches
from ...learner.training.plan import Recipe, TrainingPlan
from ...policies.objectives.losses import teacher_in_draft_vocabulary

STEP_WEIGHT = 0.8
GRAD_CLIP = 1.0
_UNTEMPERED = Sampling(temperature=1.0)


class AuroraTrainer:
    """Trains `draft` in place by Aurora's loss; the learning rate is the recipe's cold one."""

    def __init__(self, draft: Draft, plan: TrainingPlan, recipe: Recipe) -> None:
        self.draft = draft
        self._plan = plan
        self._recipe = recipe
        self._random = torch.Generator().manual_seed(plan.seed)
        self._optimiser = torch.optim.AdamW(
            draft.parameters(), lr=recipe.cold_learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def fit(self, fresh: Sequence[DraftTrace], replay: Sequence[DraftTrace]) -> tuple[int, float]:
        """Pass over `fresh` as often as the plan says; return the optimiser steps and the seconds they took."""
        began_s = time.perf_counter()
        usable = [trace for trace in fresh if len(verdict_rows(trace))]
        replayable = [trace for trace in replay if len(verdict_rows(trace))]
        batches = list(
            draw_batches(usable, replayable, passes=self._plan.passes, recipe=self._recipe, random=self._random)
        )
        for traces in batches:
            self._optimiser.zero_grad()
            aurora_loss(self.draft, traces, self._plan.steps).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.draft.parameters(), GRAD_CLIP)
            self._optimiser.step()
        return len(batches), time.perf_counter() - began_s


def aurora_loss(draft: Draft, traces: Sequence[DraftTrace], steps: int) -> Tensor:
    """Return the loss of one batch, a scalar with gradient; every trace has a row with a verdict."""
    batch = collate([replace(trace, sampling=_UNTEMPERED) for trace in traces], draft.device, soft=True)
    assert batch.teacher_ids_BTK is not None
    assert batch.teacher_probs_BTK is not None
    ids_BTK, probs_BTK, has_label_BT = teacher_in_draft_vocabulary(
        batch.teacher_ids_BTK, batch.teacher_probs_BTK, draft.target_to_draft_W
    )
    is_valid_BT = has_label_BT & (draft.target_to_draft_W[batch.teacher_ids_BTK[..., 0]] >= 0)
    chains = draft.begin(batch.tokens_BT, batch.features_BFD, batch.rows_BQ, batch.opens_text_B)
    inside_BQS = batch.scored_mask(steps)
    predicted_BQS = batch.predicted(steps).clamp(max=batch.tokens_BT.shape[1] - 1)
    trace_B1 = torch.arange(len(traces), device=draft.device)[:, None]
    loss = torch.zeros((), device=draft.device)
    for step in range(steps):
        hidden_BQH = draft.advance(chains)
        at_BQ = predicted_BQS[..., step]
        valid_BQ = inside_BQS[..., step] & is_valid_BT[trace_B1, at_BQ]
        if not valid_BQ.any():
            continue
        logq_NV = draft.lm_head(hidden_BQH[valid_BQ]).float().log_softmax(-1)
        logq_NK = logq_NV.gather(1, ids_BTK[trace_B1, at_BQ][valid_BQ])
        probs_NK = probs_BTK[trace_B1, at_BQ][valid_BQ]
        loss = loss + STEP_WEIGHT**step * -(probs_NK * logq_NK).sum(1).mean()
    return loss
