"""Objectives by name: what each of them says of scored positions, and what the whole batch costs.

Axes as in objective.py. REINFORCE is not here: it scores proposed tokens of served rounds, not committed ones; of
ON_POLICY_MIX this is the half that scores committed text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .acceptance import kl_divergences, matched_log_accepts, rejection_log_accepts, target_only_log_accepts
from .baselines.divergence import jensen_shannon_losses, reverse_kl_losses
from .baselines.expected_length import expected_length_losses, log_expected_length_losses, log_follows
from .baselines.group import GROUP_WEIGHT, best_token_probs, chain_rewards, group_advantages, group_losses
from .baselines.overlap import lk_mix_losses, tvd_plus_plus_losses
from .baselines.selection import accepted_weights, selective_losses, wrong_position_losses
from .losses import (
    Objective,
    Weighting,
    committed_losses,
    log_probs_at,
    mean_acceptance,
    onto_grid,
    position_weights,
    soft_losses,
    weighted_loss,
)

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """N scored positions: what the draft says, and what the target said. Ids are draft ids."""

    logits_NV: Tensor  # with gradient
    committed_N: Tensor  # -1 where the draft cannot say the token
    ids_NK: Tensor
    probs_NK: Tensor  # each row sums to one; all on the committed token where there is no teacher
    rejection_N: Tensor  # bool, the trace was judged under `rejection`
    steps_N: Tensor  # int64, draft step
    reference_NV: Tensor | None = None  # logits of a frozen draft, for the objectives WITH_REFERENCE

    @property
    def teacher(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draft and teacher, in the order the loss functions take them."""
        return self.logits_NV, self.ids_NK, self.probs_NK

    def beside(self, reference_NV: Tensor) -> "Positions":
        """The same positions with the logits of a frozen draft."""
        return replace(self, reference_NV=reference_NV)

    @property
    def reference(self) -> Tensor:
        """The frozen draft's logits. ValueError without one."""
        if self.reference_NV is None:
            raise ValueError("reference logits: got none, expected those of a frozen draft; pass a reference")
        return self.reference_NV


@dataclass(frozen=True, slots=True, eq=False)
class GridLoss:
    """What a batch costs; only `loss` has gradient."""

    loss: Tensor  # scalar, mean over rounds
    acceptance_S: Tensor  # mean A by draft step


def grid_loss(
    objective: Objective,
    at: Positions,
    scored_BQS: Tensor,
    inside_BQS: Tensor,
    *,
    rounds: int,
    weighting: Weighting,
    kl_weight: float = 0.0,
) -> GridLoss:
    """Loss of the N positions that `scored_BQS` marks in row-major order; acceptance is that over `inside_BQS`.

    Objectives of a whole chain and Aurora's weigh positions on their own; `weighting` holds for all others and for
    the anchor, `kl_weight` * KL(p || q). ValueError when the objective needs reference logits and has none.
    """
    losses_N, log_accepts_N = _POSITION_LOSSES[objective](at)
    log_accepts_BQS = onto_grid(log_accepts_N, scored_BQS, _NEVER)
    weights_BQS = position_weights(log_accepts_BQS, weighting)
    if objective in _CHAIN_LOSSES:
        loss = _CHAIN_LOSSES[objective](log_accepts_BQS, _follows(at, scored_BQS)).sum() / max(rounds, 1)
    else:
        own_BQS = weights_BQS
        if objective is Objective.FORWARD_KL_ACCEPTED:
            own_BQS = accepted_weights(log_accepts_BQS, scored_BQS, rounds)
        loss = weighted_loss(onto_grid(losses_N, scored_BQS, 0.0), own_BQS, scored_BQS, rounds)
    if objective is Objective.GROUP_TREE:
        loss = loss + GROUP_WEIGHT * _group_loss(at, scored_BQS) / max(rounds, 1)
    if kl_weight:
        anchor_BQS = onto_grid(kl_divergences(*at.teacher), scored_BQS, 0.0)
        loss = loss + kl_weight * weighted_loss(anchor_BQS, weights_BQS, scored_BQS, rounds)
    return GridLoss(loss, mean_acceptance(log_accepts_BQS, inside_BQS))


def _committed(at: Positions) -> tuple[Tensor, Tensor]:
    losses_N = committed_losses(at.logits_NV, at.committed_N)
    return losses_N, -losses_N.detach()


def _soft(at: Positions) -> tuple[Tensor, Tensor]:
    return soft_losses(*at.teacher)


def _target_only(at: Positions) -> tuple[Tensor, Tensor]:
    log_accepts_N = target_only_log_accepts(*at.teacher)
    return -log_accepts_N, log_accepts_N


def _rejection(at: Positions) -> tuple[Tensor, Tensor]:
    log_accepts_N = rejection_log_accepts(*at.teacher)
    return -log_accepts_N, log_accepts_N


def _matched(at: Positions) -> tuple[Tensor, Tensor]:
    log_accepts_N = matched_log_accepts(*at.teacher, at.rejection_N)
    return -log_accepts_N, log_accepts_N


def _with_matched(losses: Callable[[Positions], Tensor]) -> Callable[[Positions], tuple[Tensor, Tensor]]:
    """Losses beside the log acceptance under each trace's own rule, which weighs positions under survival."""

    def both(at: Positions) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            log_accepts_N = matched_log_accepts(*at.teacher, at.rejection_N)
        return losses(at), log_accepts_N

    return both


_POSITION_LOSSES: Mapping[Objective, Callable[[Positions], tuple[Tensor, Tensor]]] = {
    Objective.COMMITTED: _committed,
    Objective.SOFT: _soft,
    Objective.TARGET_ONLY: _target_only,
    Objective.REJECTION: _rejection,
    Objective.MATCHED: _matched,
    Objective.EXPECTED_LENGTH: _matched,
    Objective.LOG_EXPECTED_LENGTH: _matched,
    Objective.FORWARD_KL_ACCEPTED: _soft,
    Objective.FORWARD_KL_WRONG: _with_matched(
        lambda at: wrong_position_losses(at.logits_NV, at.committed_N, at.ids_NK, at.probs_NK)
    ),
    Objective.REVERSE_KL: _with_matched(lambda at: reverse_kl_losses(*at.teacher)),
    Objective.JENSEN_SHANNON: _with_matched(lambda at: jensen_shannon_losses(*at.teacher)),
    Objective.TVD_PLUS_PLUS: _with_matched(lambda at: tvd_plus_plus_losses(*at.teacher)),
    Objective.LK_MIX: _with_matched(lambda at: lk_mix_losses(*at.teacher, at.steps_N)),
    Objective.SELECTIVE: _with_matched(lambda at: selective_losses(at.logits_NV, at.reference, at.ids_NK, at.probs_NK)),
    Objective.GROUP_TREE: _soft,
    Objective.ON_POLICY_MIX: _soft,
}
_CHAIN_LOSSES: Mapping[Objective, Callable[[Tensor, Tensor], Tensor]] = {
    Objective.EXPECTED_LENGTH: expected_length_losses,
    Objective.LOG_EXPECTED_LENGTH: log_expected_length_losses,
}


def _follows(at: Positions, scored_BQS: Tensor) -> Tensor:
    follows_N = log_follows(at.logits_NV, at.committed_N, at.ids_NK, at.probs_NK, at.rejection_N)
    return onto_grid(follows_N, scored_BQS, _NEVER)


def _group_loss(at: Positions, scored_BQS: Tensor) -> Tensor:
    log_probs_BQS, agrees_BQS, rewards_BQ = _chains(at.logits_NV, at, scored_BQS)
    frozen_log_probs_BQS, _, frozen_rewards_BQ = _chains(at.reference, at, scored_BQS)
    advantages_BQ = group_advantages(rewards_BQ - frozen_rewards_BQ, scored_BQS[..., 0])
    return group_losses(log_probs_BQS, frozen_log_probs_BQS, agrees_BQS, advantages_BQ).sum()


def _chains(logits_NV: Tensor, at: Positions, scored_BQS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a draft's best chain in every row: log q of the committed tokens, where it agrees with them, its reward."""
    log_probs_N1 = log_probs_at(logits_NV, at.committed_N.clamp(min=0)[:, None])
    agrees_BQS = onto_grid(logits_NV.detach().argmax(1) == at.committed_N, scored_BQS, fill=False)
    probs_BQS = onto_grid(best_token_probs(logits_NV, at.ids_NK, at.probs_NK), scored_BQS, 0.0)
    return onto_grid(log_probs_N1[:, 0], scored_BQS, 0.0), agrees_BQS, chain_rewards(agrees_BQS, probs_BQS)
