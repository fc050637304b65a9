"""The loss of one batch: every (row, step) with a verdict.

Axes as in batch.py; N scored (row, step) pairs, H hidden size, V draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...policies.objectives.losses import mean_acceptance, teacher_in_draft_vocabulary
from ...policies.objectives.names import Weighting
from ...policies.objectives.spec import Labels, ObjectiveSpec, chains_of
from ..model.draft import Draft
from ..model.logits import CHUNK_BYTES, positions_at_once
from .batch import Batch
from .chunked_loss import Chunk, row_chunks, summed_loss


@dataclass(frozen=True, slots=True, eq=False)
class BatchScores:
    """What one forward pass found; only `loss` carries gradient."""

    loss: Tensor  # scalar, mean over the rows, each counted by its weight
    #: Mean A by step over the rows with a verdict; a token outside the draft's vocabulary counts as never accepted.
    acceptance_S: Tensor
    out_of_vocabulary_labels: int  # (row, step) pairs left out because their label is outside the draft's vocabulary


def score_batch(
    draft: Draft,
    batch: Batch,
    *,
    steps: int,
    weighting: Weighting,
    spec: ObjectiveSpec,
    chunk_bytes: int = CHUNK_BYTES,
    context_weight: float = 1.0,
) -> BatchScores:
    """Unroll `draft` over the committed text and score it, with logits of about `chunk_bytes` at a time.

    Rows of the context, where the batch has some, count `context_weight` each, the others 1. Labels are the tokens of
    the text where the objective needs no teacher, or the batch holds none. The gradients of the logits are found here,
    whatever the gradient mode; `loss.backward()` works once.
    """
    labels, scored_BQS, inside_BQS = _labelled(draft, batch, steps, spec)
    rows = _Rows.of(batch, context_weight)
    scored_RS = scored_BQS.flatten(0, 1)
    found = list[Tensor]()

    def loss_of(logits_NV: Tensor, chunk: Chunk) -> Tensor:
        at = labels.beside(logits_NV, chunk.positions)
        chunk_BRS = scored_RS[None, chunk.rows]
        weights_BR = None if rows.weights_BQ is None else rows.weights_BQ.flatten()[None, chunk.rows]
        chains = chains_of(spec, at, chunk_BRS, rounds=rows.total, weighting=weighting, row_weights_BQ=weights_BR)
        found.append(chains.log_accepts_BQS.detach()[0])
        return spec.chain_loss(chains)

    weight_VH = draft.lm_head.weight
    chunks = row_chunks(scored_RS, positions_at_once(len(labels.committed_N), weight_VH.shape, chunk_bytes))
    loss = summed_loss(_hidden_at(draft, batch, scored_BQS), weight_VH, loss_of, chunks)
    acceptance_S = mean_acceptance(torch.cat(found).view_as(scored_BQS), rows.judged(inside_BQS))
    return BatchScores(loss, acceptance_S, int(inside_BQS.sum()) - len(labels.committed_N))


def _hidden_at(draft: Draft, batch: Batch, mask_BQS: Tensor) -> Tensor:
    """Outputs of the unmasked positions, [N, H], in row-major order: masked ones never meet the vocabulary."""
    chains = draft.begin(batch.tokens_BT, batch.features_BFD, batch.rows_BQ, batch.opens_text_B)
    return torch.stack([draft.advance(chains) for _ in range(mask_BQS.shape[-1])], 2)[mask_BQS]


def _labelled(draft: Draft, batch: Batch, steps: int, spec: ObjectiveSpec) -> tuple[Labels, Tensor, Tensor]:
    """Labels of the scored positions; which those are, bool[B, Q, S]; and which are inside their trace."""
    labels = _BatchLabels.of(draft, batch, needs_teacher=spec.needs_teacher)
    inside_BQS = batch.scored_mask(steps)
    scored_BQS = inside_BQS & labels.gathered(labels.has_label_BT, batch, steps)
    return labels.at(batch, scored_BQS), scored_BQS, inside_BQS


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """How much the rows of a batch count, and which of them have a verdict."""

    total: float  # of all weights
    weights_BQ: Tensor | None  # float32; None: every row weighs 1
    context_BQ: Tensor | None  # bool

    @classmethod
    def of(cls, batch: Batch, context_weight: float) -> "_Rows":
        if batch.context_BQ is None:
            return cls(float(batch.row_mask_BQ.sum()), None, None)
        weights_BQ = torch.where(batch.context_BQ, context_weight, 1.0)
        return cls(float((weights_BQ * batch.row_mask_BQ).sum()), weights_BQ, batch.context_BQ)

    def judged(self, inside_BQS: Tensor) -> Tensor:
        """Of these positions the ones whose row has a verdict, bool[B, Q, S]."""
        return inside_BQS if self.context_BQ is None else inside_BQS & ~self.context_BQ[..., None]


@dataclass(frozen=True, slots=True, eq=False)
class _BatchLabels:
    """What every token of a batch should have been, in the draft's vocabulary."""

    committed_BT: Tensor  # -1 outside the draft's vocabulary
    ids_BTK: Tensor
    probs_BTK: Tensor  # all on the committed token without a teacher; zero where no entry is in its vocabulary
    has_label_BT: Tensor

    @classmethod
    def of(cls, draft: Draft, batch: Batch, *, needs_teacher: bool) -> "_BatchLabels":
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

    def at(self, batch: Batch, mask_BQS: Tensor) -> Labels:
        """Labels of the unmasked positions."""
        trace_N, _, steps_N = mask_BQS.nonzero(as_tuple=True)
        position_N = batch.predicted(mask_BQS.shape[-1])[mask_BQS]
        return Labels(
            committed_N=self.committed_BT[trace_N, position_N],
            ids_NK=self.ids_BTK[trace_N, position_N],
            probs_NK=self.probs_BTK[trace_N, position_N],
            rejection_N=batch.rejection_B[trace_N],
            steps_N=steps_N,
        )
