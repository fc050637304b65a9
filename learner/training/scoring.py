"""The loss of one batch: every (row, step) with a verdict, scored in one product with the vocabulary; where it is
wanted, also what the draft says on the chains it was served with.

Axes as in batch.py; N scored (row, step) pairs, R served rounds, H hidden size, V draft vocabulary.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from ...buffer.errors import ConfigError
from ...policies.objectives.acceptance import kl_divergences
from ...policies.objectives.baselines.divergence import on_policy_mix
from ...policies.objectives.baselines.reinforce import reinforce_losses
from ...policies.objectives.losses import (
    WITH_REFERENCE,
    Objective,
    Weighting,
    log_probs_at,
    mean_acceptance,
    onto_grid,
    speakable_teacher,
)
from ...policies.objectives.table import Positions, grid_loss
from ..model.eagle3 import Eagle3Draft
from .batch import Batch
from .off_path import NodeLosses, node_losses
from .served_rounds import ServedRounds


@dataclass(frozen=True, slots=True, eq=False)
class BatchScores:
    """What one forward pass says; only `loss` carries gradient."""

    loss: Tensor  # scalar, mean over the rows with a verdict
    acceptance_S: Tensor  # mean A by step; a token the draft cannot say counts as never accepted
    unspeakable_labels: int  # (row, step) and nodes left out because the draft cannot say their label


def score_batch(
    draft: Eagle3Draft,
    batch: Batch,
    steps: int,
    weighting: Weighting,
    objective: Objective | None = None,
    *,
    kl_weight: float = 0.0,
    reference: Eagle3Draft | None = None,
    rounds: ServedRounds | None = None,
    off_path_weight: float = 0.0,
) -> BatchScores:
    """Unroll `draft` over the committed text and score it; without an objective SOFT where the batch holds a teacher,
    else COMMITTED.

    `kl_weight` adds that much KL(teacher || draft) at every scored position. `reference` is a frozen draft of the same
    vocabulary, for the objectives WITH_REFERENCE; REINFORCE takes the draft itself where there is none. `rounds` are
    those of the traces in `batch`. Of them `off_path_weight` adds that much cross-entropy to the teacher at nodes
    behind a first rejection, weighted by position and divided by the rows with a verdict, as if they were positions
    of committed text. ON_POLICY_MIX adds all nodes, and halves what is said of committed text, the anchor included.
    ConfigError when the batch or the call lacks what is asked for.
    """
    wanted = objective or (Objective.COMMITTED if batch.teacher_ids_BTK is None else Objective.SOFT)
    if wanted is Objective.REINFORCE:
        scores = _score_verdicts(draft, batch, steps, kl_weight, reference)
    else:
        scores = _score_text(draft, batch, steps, weighting, wanted, kl_weight, reference)
    if wanted is not Objective.ON_POLICY_MIX and not off_path_weight:
        return scores
    if rounds is None:
        asks = f"objective {wanted} with off_path_weight {off_path_weight}"
        raise ConfigError(f"{asks}: got no served rounds, expected those of the batch; pass `rounds`")
    return _with_nodes(scores, node_losses(draft, batch, rounds, weighting), rounds, batch, wanted, off_path_weight)


def _with_nodes(
    scores: BatchScores,
    found: NodeLosses,
    rounds: ServedRounds,
    batch: Batch,
    wanted: Objective,
    off_path_weight: float,
) -> BatchScores:
    loss, off_path_BRN, is_mixed = scores.loss, rounds.off_path_mask(), wanted is Objective.ON_POLICY_MIX
    if is_mixed:
        served = int((rounds.nodes_BR > 0).sum())
        loss = on_policy_mix(loss, found.losses_BRN.sum() / max(served, 1))
    if off_path_weight:
        off_path = found.losses_BRN.masked_fill(~off_path_BRN, 0.0).sum()
        loss = loss + off_path_weight * off_path / max(int(batch.row_mask_BQ.sum()), 1)
    unspeakable = int((found.unspeakable_BRN & (off_path_BRN | is_mixed)).sum())
    return replace(scores, loss=loss, unspeakable_labels=scores.unspeakable_labels + unspeakable)


def _score_text(
    draft: Eagle3Draft,
    batch: Batch,
    steps: int,
    weighting: Weighting,
    wanted: Objective,
    kl_weight: float,
    reference: Eagle3Draft | None,
) -> BatchScores:
    """Every row with a verdict, on committed text."""
    if wanted in WITH_REFERENCE and reference is None:
        raise ConfigError(f"objective {wanted}: got no reference draft, expected one to compare with; pass `reference`")
    labels = _Labels.of(draft, batch, wanted)
    inside_BQS = batch.scored_mask(steps)
    mask_BQS = inside_BQS & labels.gathered(labels.has_label_BT, batch, steps)
    at = labels.at(batch, mask_BQS, _logits(draft, batch, mask_BQS))
    if wanted in WITH_REFERENCE and reference is not None:
        at = at.beside(_frozen_logits(reference, batch, mask_BQS))
    rounds = int(batch.row_mask_BQ.sum())
    scored = grid_loss(wanted, at, mask_BQS, inside_BQS, rounds=rounds, weighting=weighting, kl_weight=kl_weight)
    return BatchScores(scored.loss, scored.acceptance_S, int(inside_BQS.sum()) - len(at.committed_N))


def _score_verdicts(
    draft: Eagle3Draft, batch: Batch, steps: int, kl_weight: float, reference: Eagle3Draft | None
) -> BatchScores:
    """REINFORCE: the proposals of served rounds, as far as they were judged. All before them stood, so the draft
    that is fed the committed text is in the state it proposed them from."""
    proposed_BQS, asked_BQS, accepted_BQ = _judged(draft, batch, steps)
    judged_BQS = (asked_BQS & (proposed_BQS >= 0)).cumprod(-1).bool()
    stood_BQS = judged_BQS & (torch.arange(steps, device=draft.device) < accepted_BQ[..., None])
    said_N1 = proposed_BQS[judged_BQS][:, None]
    logits_NV = _logits(draft, batch, judged_BQS)
    logq_BQS = onto_grid(log_probs_at(logits_NV, said_N1)[:, 0], judged_BQS, 0.0)
    old_BQS = logq_BQS.detach()
    if reference is not None:
        frozen_NV = _frozen_logits(reference, batch, judged_BQS)
        old_BQS = onto_grid(log_probs_at(frozen_NV, said_N1)[:, 0], judged_BQS, 0.0)
    served_BQ = judged_BQS[..., 0]
    rounds = max(int(served_BQ.sum()), 1)
    logq_RS, old_RS = logq_BQS[served_BQ], old_BQS[served_BQ]
    loss = reinforce_losses(logq_RS, old_RS, judged_BQS[served_BQ], stood_BQS[served_BQ]).sum() / rounds
    if kl_weight:
        at = _Labels.of(draft, batch, Objective.REINFORCE).at(batch, judged_BQS, logits_NV)
        loss = loss + kl_weight * kl_divergences(*at.teacher).sum() / rounds
    log_accepts_BQS = stood_BQS.to(logq_BQS).log()
    unspeakable = int((asked_BQS & (proposed_BQS < 0)).sum())
    return BatchScores(loss, mean_acceptance(log_accepts_BQS, judged_BQS), unspeakable)


def _judged(draft: Eagle3Draft, batch: Batch, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Proposals as draft ids (-1: none, or the draft cannot say it), which of them were judged, and how many stood."""
    if batch.proposed_BQP is None or batch.accepted_BQ is None:
        raise ConfigError("objective reinforce: got a batch without verdicts, expected collate(..., verdicts=True)")
    given_BQS = functional.pad(batch.proposed_BQP, (0, max(steps - batch.proposed_BQP.shape[-1], 0)), value=-1)
    given_BQS = given_BQS[..., :steps]
    ids_BQS = torch.where(given_BQS >= 0, draft.target_to_draft_W[given_BQS.clamp(min=0)], -1)
    # The first rejected proposal was judged too, and none behind it; accepted is -1 where no round was served.
    reached_BQS = torch.arange(steps, device=draft.device) <= batch.accepted_BQ[..., None]
    return ids_BQS, reached_BQS & (given_BQS >= 0) & batch.scored_mask(steps), batch.accepted_BQ


def _logits(draft: Eagle3Draft, batch: Batch, mask_BQS: Tensor) -> Tensor:
    """Logits of the unmasked positions, float32[N, V], in row-major order."""
    chains = draft.begin(batch.tokens_BT, batch.features_BFD, batch.rows_BQ)
    hidden_BQSH = torch.stack([draft.advance(chains) for _ in range(mask_BQS.shape[-1])], 2)
    # One product for all steps, and masked rows never meet it: the vocabulary is the widest matrix here.
    logits_NV: Tensor = draft.lm_head(hidden_BQSH[mask_BQS]).float()
    return logits_NV


@torch.no_grad()
def _frozen_logits(reference: Eagle3Draft, batch: Batch, mask_BQS: Tensor) -> Tensor:
    return _logits(reference, batch, mask_BQS)


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """What every token of a batch should have been, in the draft's vocabulary."""

    committed_BT: Tensor  # -1 where the draft cannot say it
    ids_BTK: Tensor
    probs_BTK: Tensor  # all on the committed token where the batch holds no teacher; zero where nothing can be said
    has_label_BT: Tensor

    @classmethod
    def of(cls, draft: Eagle3Draft, batch: Batch, objective: Objective) -> "_Labels":
        committed_BT = draft.target_to_draft_W[batch.tokens_BT]
        is_said_BT = committed_BT >= 0
        if batch.teacher_ids_BTK is None or batch.teacher_probs_BTK is None:
            return cls(committed_BT, committed_BT.clamp(min=0)[..., None], is_said_BT.float()[..., None], is_said_BT)
        ids, probs, has = speakable_teacher(batch.teacher_ids_BTK, batch.teacher_probs_BTK, draft.target_to_draft_W)
        if objective is Objective.COMMITTED:
            has = is_said_BT
        elif objective is Objective.FORWARD_KL_ACCEPTED:
            has = draft.target_to_draft_W[batch.teacher_ids_BTK[..., 0]] >= 0
        return cls(committed_BT, ids, probs, has)

    def gathered(self, values_BT: Tensor, batch: Batch, steps: int) -> Tensor:
        """Values of the tokens that every (row, step) predicts, [B, Q, S]; the last token's beyond the window."""
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
