"""Losses on the overlap alpha = sum_v min(p(v), q(v)), the acceptance under `rejection`: TVD++, the LK mix, DSpark's.

Axes as in losses.py. alpha is 1 - TV(p, q). (LK's -log alpha is `acceptance.rejection_log_accepts`.)

The missing tail counts as zero and p is renormalised over the entries shown, so alpha is off by at most the tail's
mass. Outside the entries p < q: nothing to gain there, no reward, no gradient.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ..acceptance import rejection_log_accepts
from ..losses import log_probs_at

#: eta of the LK mix; the larger, the sooner it leaves KL for the overlap.
LK_DECAY = 3.0
#: Shares of cross-entropy and of the L1 distance in DSpark's loss.
CE_SHARE, L1_SHARE = 0.1, 0.9
_LEAST_DEVIATION = 1e-3


def tvd_plus_plus_losses(logits_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor) -> Tensor:
    """The total variation, float[N], with the variance-reduced gradient of TVD++ (Goel et al., arXiv 2403.00858).

    The gradient of TV is a policy gradient, -E_{x~q}[grad log q(x) r(x)] with the reward r(x) = 1[p(x) > q(x)]. TVD++
    standardises the reward: (r - mean) / deviation. Chosen here: mean and deviation under q over all N positions
    together, held constant; the expectation is summed over the vocabulary instead of sampled, and then the mean
    cancels (the gradients of q sum to zero) and the deviation, sqrt(mean (1 - mean)), scales the step. It is kept
    above 1e-3, so that a draft with reward nowhere or everywhere does not divide by zero.
    """
    q_NK = log_probs_at(logits_NV, ids_NK).exp()
    with torch.no_grad():
        reward_NK = (probs_NK > q_NK).to(q_NK)
        mean = (q_NK * reward_NK).sum(1).mean()
        deviation = (mean * (1.0 - mean)).clamp(min=0.0).sqrt().clamp(min=_LEAST_DEVIATION)
        distance_N = 1.0 - torch.minimum(q_NK, probs_NK).sum(1)
    surrogate_N = -(q_NK * reward_NK).sum(1) / deviation
    return distance_N + (surrogate_N - surrogate_N.detach())


def lk_mix_losses(
    logits_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor, steps_N: Tensor, decay: float = LK_DECAY
) -> Tensor:
    """m KL(p || q) + (1 - m)(1 - alpha), float[N], m = exp(-decay * mean alpha) without gradient.

    The adaptive mix of LK losses (arXiv 2602.23881). `steps_N` is the draft step of each position. Chosen here, after
    the authors' code in SpecForge: the mean is over all positions of the same draft step; decay is 3.
    """
    alpha_N = rejection_log_accepts(logits_NV, ids_NK, probs_NK).exp()
    share_N = torch.exp(-decay * _mean_by_step(alpha_N.detach(), steps_N))
    return share_N * kl_divergences(logits_NV, ids_NK, probs_NK) + (1.0 - share_N) * (1.0 - alpha_N)


def ce_l1_losses(
    logits_NV: Tensor,
    committed_N: Tensor,
    ids_NK: Tensor,
    probs_NK: Tensor,
    shares: tuple[float, float] = (CE_SHARE, L1_SHARE),
) -> Tensor:
    """0.1 * -log q(committed token) + 0.9 * sum_v |p(v) - q(v)|, float[N]; the sum is 2 (1 - alpha), twice the total
    variation.

    The loss of DSpark (arXiv 2607.05147) without the term of its confidence head, and the default of three trainers;
    NeMo AutoModel's code sums |p - q| without halving it. Chosen here: a position counts as the row's weighting says,
    theirs decays by exp(-step / gamma). A committed token outside the draft's vocabulary, -1, has no cross-entropy.
    """
    cross_entropy_N = functional.cross_entropy(logits_NV, committed_N, reduction="none", ignore_index=-1)
    alpha_N = rejection_log_accepts(logits_NV, ids_NK, probs_NK).exp()
    return shares[0] * cross_entropy_N + shares[1] * 2.0 * (1.0 - alpha_N)


def kl_divergences(logits_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor) -> Tensor:
    """KL(p || q), float[N]. Rows of `probs_NK` that are all zero give 0.

    The tail counts as zero, so the entropy is that of the entries shown: the value is not below zero, and reaches
    zero only when q is all on them.
    """
    entropy_terms_NK = torch.xlogy(probs_NK, probs_NK)
    return (entropy_terms_NK - probs_NK * log_probs_at(logits_NV, ids_NK)).sum(1)


def _mean_by_step(values_N: Tensor, steps_N: Tensor) -> Tensor:
    length = int(steps_N.max()) + 1 if len(steps_N) else 0
    sums_S = values_N.new_zeros(length).index_add(0, steps_N, values_N)
    return (sums_S / torch.bincount(steps_N, minlength=length).clamp(min=1))[steps_N]
