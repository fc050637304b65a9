"""The loss of one batch: every (row, step) with a verdict, scored in one product with the vocabulary.

Axes as in batch.py; N scored (row, step) pairs, H hidden size, V draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..policies.objective import (
    Weighting,
    committed_losses,
    mean_acceptance,
    onto_grid,
    position_weights,
    soft_losses,
    speakable_teacher,
    weighted_loss,
)
from .batch import Batch
from .eagle3 import Eagle3Draft


@dataclass(frozen=True, slots=True, eq=False)
class BatchScores:
    """What one forward pass says; only `loss` carries gradient."""

    loss: Tensor  # scalar, mean over the rows with a verdict
    acceptance_S: Tensor  # mean A by step; a token the draft cannot say counts as never accepted
    unspeakable_labels: int  # (row, step) left out because the draft cannot say their label


def score_batch(draft: Eagle3Draft, batch: Batch, steps: int, weighting: Weighting) -> BatchScores:
    """Unroll `draft` over the committed text and score it: against the teacher where the batch holds one."""
    inside_BQS = batch.scored_mask(steps)
    position_BQS = batch.predicted(steps).clamp(max=batch.tokens_BT.shape[1] - 1)
    labels = _Labels.of(draft, batch)
    mask_BQS = inside_BQS & labels.has_label_BT.gather(1, position_BQS.flatten(1)).view_as(inside_BQS)
    chains = draft.begin(batch.tokens_BT, batch.features_BFD, batch.rows_BQ)
    hidden_BQSH = torch.stack([draft.advance(chains) for _ in range(steps)], 2)
    # One product for all steps, and masked rows never meet it: the vocabulary is the widest matrix here.
    logits_NV = draft.lm_head(hidden_BQSH[mask_BQS]).float()
    losses_N, log_accepts_N = labels.score(logits_NV, position_BQS, mask_BQS)
    log_accepts_BQS = onto_grid(log_accepts_N, mask_BQS, float("-inf"))
    weights_BQS = position_weights(log_accepts_BQS, weighting)
    rounds = int(batch.row_mask_BQ.sum())
    loss = weighted_loss(onto_grid(losses_N, mask_BQS, 0.0), weights_BQS, mask_BQS, rounds)
    unspeakable = int(inside_BQS.sum()) - len(losses_N)
    return BatchScores(loss, mean_acceptance(log_accepts_BQS, inside_BQS), unspeakable)


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """What every token of a batch should have been, in the draft's vocabulary."""

    has_label_BT: Tensor
    ids_BTK: Tensor
    probs_BTK: Tensor | None  # None: all on the first id

    @classmethod
    def of(cls, draft: Eagle3Draft, batch: Batch) -> "_Labels":
        if batch.teacher_ids_BTK is None or batch.teacher_probs_BTK is None:
            ids_BT = draft.target_to_draft_W[batch.tokens_BT]
            return cls(ids_BT >= 0, ids_BT[..., None], None)
        ids, probs, has = speakable_teacher(batch.teacher_ids_BTK, batch.teacher_probs_BTK, draft.target_to_draft_W)
        return cls(has, ids, probs)

    def score(self, logits_NV: Tensor, position_BQS: Tensor, mask_BQS: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and log acceptances of the unmasked positions, float[N] each."""
        trace_N, position_N = mask_BQS.nonzero()[:, 0], position_BQS[mask_BQS]
        ids_NK = self.ids_BTK[trace_N, position_N]
        if self.probs_BTK is None:
            losses_N = committed_losses(logits_NV, ids_NK[:, 0])
            return losses_N, -losses_N.detach()
        return soft_losses(logits_NV, ids_NK, self.probs_BTK[trace_N, position_N])
