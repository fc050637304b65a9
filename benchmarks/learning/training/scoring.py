"""The loss of one batch under any objective of the bench, with drafted chains beside the committed text.

Axes as in learner/training/batch.py; N scored (row, step) pairs, R served rounds, V draft vocabulary.
"""

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from ....buffer.errors import ConfigError
from ....learner.model.eagle3 import Eagle3Draft
from ....learner.training.batch import Batch
from ....learner.training.scoring import BatchScores, ScoredText, logits_at, score_text, unrolled
from ....policies.objectives.baselines.divergence import on_policy_mix
from ....policies.objectives.baselines.reinforce import reinforce_losses
from ....policies.objectives.baselines.table import BENCH_OBJECTIVES
from ....policies.objectives.losses import log_probs_at, mean_acceptance, onto_grid
from ....policies.objectives.names import Weighting
from ....policies.objectives.spec import ObjectiveSpec
from .off_path import NodeLosses, node_losses
from .served_rounds import ServedRounds
from .verdicts import Verdicts, judged_proposals

_T = TypeVar("_T")


def score_all(
    draft: Eagle3Draft,
    batch: Batch,
    steps: int,
    weighting: Weighting,
    objective: str,
    *,
    reference: Eagle3Draft | None = None,
    verdicts: Verdicts | None = None,
    rounds: ServedRounds | None = None,
    off_path_weight: float = 0.0,
    context_weight: float = 1.0,
) -> BatchScores:
    """Unroll `draft` and score it under `objective`, a name of BENCH_OBJECTIVES.

    `reference` is a frozen draft of the same vocabulary; REINFORCE takes the draft itself where there is none.
    `verdicts` and `rounds` are those of the traces in `batch`. Of the rounds `off_path_weight` adds that much
    cross-entropy to the teacher at nodes after a first rejection, weighted by position and divided by the rows with a
    verdict, as if they were positions of committed text. ON_POLICY_MIX adds all nodes, and halves the loss of
    committed text. Rows of the context count `context_weight`, where the batch has some. ConfigError when the call
    lacks what is asked for.
    """
    spec = BENCH_OBJECTIVES[objective]
    if spec.needs_verdicts:
        scores = _score_verdicts(draft, batch, steps, _given(objective, "verdicts", verdicts), reference)
    else:
        text = _scored_text(draft, batch, steps, objective, reference)
        scores = score_text(text, batch, weighting, spec, context_weight)
    if not spec.needs_served_rounds and not off_path_weight:
        return scores
    found_rounds = _given(f"{objective} with off_path_weight {off_path_weight}", "served rounds", rounds)
    nodes = node_losses(draft, batch, found_rounds, weighting)
    return _with_nodes(scores, nodes, found_rounds, batch, spec, off_path_weight)


def _given(asks: str, what: str, value: _T | None) -> _T:
    if value is None:
        raise ConfigError(f"objective {asks}: got no {what}, expected those of the batch; pass them")
    return value


def _with_nodes(
    scores: BatchScores,
    found: NodeLosses,
    rounds: ServedRounds,
    batch: Batch,
    spec: ObjectiveSpec,
    off_path_weight: float,
) -> BatchScores:
    loss, off_path_BRN = scores.loss, rounds.off_path_mask()
    if spec.needs_served_rounds:
        served = int((rounds.nodes_BR > 0).sum())
        loss = on_policy_mix(loss, found.losses_BRN.sum() / max(served, 1))
    if off_path_weight:
        off_path = found.losses_BRN.masked_fill(~off_path_BRN, 0.0).sum()
        loss = loss + off_path_weight * off_path / max(int(batch.row_mask_BQ.sum()), 1)
    out_of_vocabulary = int((found.out_of_vocabulary_BRN & (off_path_BRN | spec.needs_served_rounds)).sum())
    return replace(scores, loss=loss, out_of_vocabulary_labels=scores.out_of_vocabulary_labels + out_of_vocabulary)


def _scored_text(
    draft: Eagle3Draft, batch: Batch, steps: int, objective: str, reference: Eagle3Draft | None
) -> ScoredText:
    """Every row of the batch, on the text as it went on, beside a reference where the objective needs one."""
    spec = BENCH_OBJECTIVES[objective]
    if spec.needs_reference and reference is None:
        raise ConfigError(f"objective {objective}: got no reference draft, expected one to compare with; pass it")
    text = unrolled(draft, batch, steps, spec)
    if spec.needs_reference and reference is not None:
        frozen_NV = _frozen_logits(reference, batch, text.scored_BQS)
        text = replace(text, at=replace(text.at, reference_NV=frozen_NV))
    return text


def _score_verdicts(
    draft: Eagle3Draft, batch: Batch, steps: int, verdicts: Verdicts, reference: Eagle3Draft | None
) -> BatchScores:
    """REINFORCE: the proposals of served rounds, as far as they were judged. All before them were accepted, so the
    draft that is fed the committed text is in the state it proposed them from.
    """
    found = judged_proposals(draft, batch, verdicts, steps)
    judged_BQS = (found.asked_BQS & (found.ids_BQS >= 0)).cumprod(-1).bool()
    accepted_BQS = judged_BQS & (torch.arange(steps, device=draft.device) < found.accepted_BQ[..., None])
    proposed_N1 = found.ids_BQS[judged_BQS][:, None]
    logq_BQS = onto_grid(log_probs_at(logits_at(draft, batch, judged_BQS), proposed_N1)[:, 0], judged_BQS, 0.0)
    old_BQS = logq_BQS.detach()
    if reference is not None:
        frozen_NV = _frozen_logits(reference, batch, judged_BQS)
        old_BQS = onto_grid(log_probs_at(frozen_NV, proposed_N1)[:, 0], judged_BQS, 0.0)
    served_BQ = judged_BQS[..., 0]
    logq_RS, old_RS = logq_BQS[served_BQ], old_BQS[served_BQ]
    losses_R = reinforce_losses(logq_RS, old_RS, judged_BQS[served_BQ], accepted_BQS[served_BQ])
    out_of_vocabulary = int((found.asked_BQS & (found.ids_BQS < 0)).sum())
    acceptance_S = mean_acceptance(accepted_BQS.to(logq_BQS).log(), judged_BQS)
    return BatchScores(losses_R.sum() / max(len(losses_R), 1), acceptance_S, out_of_vocabulary)


@torch.no_grad()
def _frozen_logits(reference: Eagle3Draft, batch: Batch, mask_BQS: Tensor) -> Tensor:
    return logits_at(reference, batch, mask_BQS)
