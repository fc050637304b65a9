"""The objectives of the learning bench by name: production's, and the baselines they are compared with.

Axes as in losses.py.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..acceptance import matched_log_accepts
from ..losses import log_probs_at, onto_grid, weighted_loss
from ..spec import Chains, ObjectiveSpec, PositionLoss, Positions, weighted_positions
from ..table import OBJECTIVES, matched, soft
from .divergence import jensen_shannon_losses, reverse_kl_losses
from .expected_length import expected_length_losses, log_expected_length_losses, log_follows
from .forward_kl import accepted_weights, selective_losses, wrong_position_losses
from .group import GROUP_WEIGHT, best_token_probs, chain_rewards, group_advantages, group_losses
from .names import Baseline
from .overlap import ce_l1_losses, lk_mix_losses, tvd_plus_plus_losses


def _with_matched(losses: Callable[[Positions], Tensor]) -> PositionLoss:
    """Losses beside the log acceptance under each trace's own rule, which weighs positions under survival."""

    def both(at: Positions) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            log_accepts_N = matched_log_accepts(*at.teacher, at.rejection_N)
        return losses(at), log_accepts_N

    return both


def _wrong(at: Positions) -> Tensor:
    return wrong_position_losses(at.logits_NV, at.committed_N, at.ids_NK, at.probs_NK)


def _ce_l1(at: Positions) -> Tensor:
    return ce_l1_losses(at.logits_NV, at.committed_N, at.ids_NK, at.probs_NK)


def _selective(at: Positions) -> Tensor:
    return selective_losses(at.logits_NV, at.reference, at.ids_NK, at.probs_NK)


def _verdicts_alone(at: Positions) -> tuple[Tensor, Tensor]:
    raise ValueError(
        f"reinforce: got {len(at.steps_N)} positions of committed text, expected verdicts of served rounds"
    )


def _expected_length(chains: Chains) -> Tensor:
    return expected_length_losses(chains.log_accepts_BQS, _follows(chains)).sum() / max(chains.rounds, 1)


def _log_expected_length(chains: Chains) -> Tensor:
    return log_expected_length_losses(chains.log_accepts_BQS, _follows(chains)).sum() / max(chains.rounds, 1)


def _follows(chains: Chains) -> Tensor:
    at = chains.at
    follows_N = log_follows(at.logits_NV, at.committed_N, at.ids_NK, at.probs_NK, at.rejection_N)
    return onto_grid(follows_N, chains.scored_BQS, float("-inf"))


def _mean_by_step(chains: Chains) -> Tensor:
    weights_BQS = accepted_weights(chains.log_accepts_BQS, chains.scored_BQS, chains.rounds)
    return weighted_loss(chains.losses_BQS, weights_BQS, chains.scored_BQS, chains.rounds)


def _with_group(chains: Chains) -> Tensor:
    at, scored_BQS = chains.at, chains.scored_BQS
    log_probs_BQS, agrees_BQS, rewards_BQ = _best_chains(at.logits_NV, at, scored_BQS)
    frozen_log_probs_BQS, _, frozen_rewards_BQ = _best_chains(at.reference, at, scored_BQS)
    advantages_BQ = group_advantages(rewards_BQ - frozen_rewards_BQ, scored_BQS[..., 0])
    group = group_losses(log_probs_BQS, frozen_log_probs_BQS, agrees_BQS, advantages_BQ).sum()
    return weighted_positions(chains) + GROUP_WEIGHT * group / max(chains.rounds, 1)


def _best_chains(logits_NV: Tensor, at: Positions, scored_BQS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a draft's best chain in every row: log q of the committed tokens, where it agrees with them, its reward."""
    log_probs_N1 = log_probs_at(logits_NV, at.committed_N.clamp(min=0)[:, None])
    agrees_BQS = onto_grid(logits_NV.detach().argmax(1) == at.committed_N, scored_BQS, fill=False)
    probs_BQS = onto_grid(best_token_probs(logits_NV, at.ids_NK, at.probs_NK), scored_BQS, 0.0)
    return onto_grid(log_probs_N1[:, 0], scored_BQS, 0.0), agrees_BQS, chain_rewards(agrees_BQS, probs_BQS)


BASELINES: Mapping[Baseline, ObjectiveSpec] = {
    Baseline.EXPECTED_LENGTH: ObjectiveSpec(matched, _expected_length),
    Baseline.LOG_EXPECTED_LENGTH: ObjectiveSpec(matched, _log_expected_length),
    Baseline.REINFORCE: ObjectiveSpec(_verdicts_alone, needs_teacher=False, needs_reference=True, needs_verdicts=True),
    Baseline.FORWARD_KL_ACCEPTED: ObjectiveSpec(soft, _mean_by_step, as_served=False),
    Baseline.FORWARD_KL_WRONG: ObjectiveSpec(_with_matched(_wrong)),
    Baseline.REVERSE_KL: ObjectiveSpec(_with_matched(lambda at: reverse_kl_losses(*at.teacher))),
    Baseline.JENSEN_SHANNON: ObjectiveSpec(_with_matched(lambda at: jensen_shannon_losses(*at.teacher))),
    Baseline.ON_POLICY_MIX: ObjectiveSpec(soft, needs_served_rounds=True),
    Baseline.TVD_PLUS_PLUS: ObjectiveSpec(_with_matched(lambda at: tvd_plus_plus_losses(*at.teacher))),
    Baseline.LK_MIX: ObjectiveSpec(_with_matched(lambda at: lk_mix_losses(*at.teacher, at.steps_N))),
    Baseline.CE_L1: ObjectiveSpec(_with_matched(_ce_l1)),
    Baseline.SELECTIVE: ObjectiveSpec(_with_matched(_selective), needs_reference=True),
    Baseline.GROUP_TREE: ObjectiveSpec(soft, _with_group, needs_reference=True),
}
#: Everything the bench can train on. Names of both kinds are strings, and no two are alike.
BENCH_OBJECTIVES: Mapping[str, ObjectiveSpec] = dict([*OBJECTIVES.items(), *BASELINES.items()])
