"""The loss of one batch: every (row, step) with a verdict, scored in one product with the vocabulary.

Axes as in batch.py; N scored (row, step) pairs, H hidden size, V draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...policies.objectives.losses import teacher_in_draft_vocabulary
from ...policies.objectives.names import Weighting
from ...policies.objectives.spec import ObjectiveSpec, Positions, grid_loss
from ..model.eagle3 import Eagle3Draft
from .batch import Batch


@dataclass(frozen=True, slots=True, eq=False)
class BatchScores:
    """What one forward pass found; only `loss` carries gradient."""

    loss: Tensor  # scalar, mean over the rows with a verdict
    acceptance_S: Tensor  # mean A by step; a token outside the draft's vocabulary counts as never accepted
    out_of_vocabulary_labels: int  # (row, step) pairs left out because their label is outside the draft's vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class ScoredText:
    """Draft and labels of a batch, at every (row, step) that predicts a token inside its trace and has a label."""

    at: Positions
    scored_BQS: Tensor  # bool, the N positions of `at` in row-major order
    inside_BQS: Tensor  # bool, those without a label included


def score_batch(draft: Eagle3Draft, batch: Batch, steps: int, weighting: Weighting, spec: ObjectiveSpec) -> BatchScores:
    """Unroll `draft` over the committed text and score it.

    Labels are the committed tokens where the objective needs no teacher, or the batch holds none.
    """
    return score_text(unrolled(draft, batch, steps, spec), batch, weighting, spec)


def unrolled(draft: Eagle3Draft, batch: Batch, steps: int, spec: ObjectiveSpec) -> ScoredText:
    """`draft` unrolled on the committed text, beside the labels that `spec` asks for."""
    labels = _Labels.of(draft, batch, needs_teacher=spec.needs_teacher)
    inside_BQS = batch.scored_mask(steps)
    scored_BQS = inside_BQS & labels.gathered(labels.has_label_BT, batch, steps)
    return ScoredText(labels.at(batch, scored_BQS, logits_at(draft, batch, scored_BQS)), scored_BQS, inside_BQS)


def score_text(text: ScoredText, batch: Batch, weighting: Weighting, spec: ObjectiveSpec) -> BatchScores:
    """The loss of `text`, which is that of `batch`, under `spec`."""
    rounds = int(batch.row_mask_BQ.sum())
    found = grid_loss(spec, text.at, text.scored_BQS, text.inside_BQS, rounds=rounds, weighting=weighting)
    return BatchScores(found.loss, found.acceptance_S, int(text.inside_BQS.sum()) - len(text.at.committed_N))


def logits_at(draft: Eagle3Draft, batch: Batch, mask_BQS: Tensor) -> Tensor:
    """Logits of the unmasked positions, float32[N, V], in row-major order."""
    chains = draft.begin(batch.tokens_BT, batch.features_BFD, batch.rows_BQ)
    hidden_BQSH = torch.stack([draft.advance(chains) for _ in range(mask_BQS.shape[-1])], 2)
    # One product for all steps, and masked rows never meet it: the vocabulary is the widest matrix here.
    logits_NV: Tensor = draft.lm_head(hidden_BQSH[mask_BQS]).float()
    return logits_NV


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """What every token of a batch should have been, in the draft's vocabulary."""

    committed_BT: Tensor  # -1 outside the draft's vocabulary
    ids_BTK: Tensor
    probs_BTK: Tensor  # all on the committed token without a teacher; zero where no entry is in its vocabulary
    has_label_BT: Tensor

    @classmethod
    def of(cls, draft: Eagle3Draft, batch: Batch, *, needs_teacher: bool) -> "_Labels":
        committed_BT = draft.target_to_draft_W[batch.tokens_BT]
        if not needs_teacher or batch.teacher_ids_BTK is None or batch.teacher_probs_BTK is None:
            is_known_BT = committed_BT >= 0
            return cls(committed_BT, committed_BT.clamp(min=0)[..., None], is_known_BT.float()[..., None], is_known_BT)
        teacher = teacher_in_draft_vocabulary(batch.teacher_ids_BTK, batch.teacher_probs_BTK, draft.target_to_draft_W)
        return cls(committed_BT, *teacher)

    def gathered(self, values_BT: Tensor, batch: Batch, steps: int) -> Tensor:
        """Values of the tokens that every (row, step) predicts, [B, Q, S]; the last token's beyond the trace."""
        position_BQS = batch.predicted(steps).clamp(max=batch.tokens_BT.shape[1] - 1)
        return values_BT.gather(1, position_BQS.flatten(1)).view_as(position_BQS)

    def at(self, batch: Batch, mask_BQS: Tensor, logits_NV: Tensor) -> Positions:
        """Draft and labels of the unmasked positions."""
        trace_N, _, steps_N = mask_BQS.nonzero(as_tuple=True)
        position_N = batch.predicted(mask_BQS.shape[-1])[mask_BQS]
        return Positions(
            logits_NV,
            self.committed_BT[trace_N, position_N],
            self.ids_BTK[trace_N, position_N],
            self.probs_BTK[trace_N, position_N],
            batch.rejection_B[trace_N],
            steps_N,
        )
