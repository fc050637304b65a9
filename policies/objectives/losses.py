"""The losses every objective is built from: labels, position weights, and the two plain cross-entropies.

Axes: B traces, Q rows (one per possible round root), S draft steps, N scored (row, step) pairs of a batch,
V draft vocabulary, W target vocabulary, K teacher entries. Token ids are draft ids unless said otherwise.

A draft token is an action, its reward is acceptance. With A_i the probability that step i's proposal is
accepted given that those before it were, a round of S drafts has the loss

    sum_i w_i * l_i        w_i = 0.8^i, or the detached survival product prod_{m<i} A_m

with p the distribution the request was served with and q the draft's. Families of l, or of a whole chain:

- here: committed, -log q(committed token), which is -log A under `greedy`, where the committed token is the only
  rewarded action; soft, -sum_v p(v) log q(v), which by Jensen bounds -log sum_v p(v) q(v) from above.
- acceptance.py: -log A for every verdict rule.
- table.py finds them by name.

The teacher is the target's top-K, renormalised (`served_probs`, `teacher_in_draft_vocabulary`): the tail has
probability zero. Cross-entropy and every gradient of log sum_v p(v) q(v) are unaffected by the renormalisation;
sum_v min(p, q) and the total variation are off by at most the tail's mass, since both are 1-Lipschitz in p; a reverse
KL needs a floor. Each family documents what that means for it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from .names import Weighting

GEOMETRIC_RATIO = 0.8


def committed_losses(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
    """-log q(label), float[N]; its negative is the log acceptance under `greedy`."""
    return functional.cross_entropy(logits_NV, labels_N, reduction="none")


def soft_losses(logits_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy to the teacher, float[N], and log sum_v p(v) q(v), float[N], which carries no gradient.

    Each row of `probs_NK` must sum to one; entries of probability zero may hold any valid id.
    """
    logq_NK = log_probs_at(logits_NV, ids_NK)
    with torch.no_grad():
        log_accepts_N = (logq_NK + probs_NK.log()).logsumexp(1)
    return -(probs_NK * logq_NK).sum(1), log_accepts_N


def log_probs_at(logits_NV: Tensor, ids_NK: Tensor) -> Tensor:
    """log q of the named tokens, float[N, K]."""
    return logits_NV.gather(1, ids_NK) - logits_NV.logsumexp(1, keepdim=True)


def position_weights(log_accepts_BQS: Tensor, weighting: Weighting) -> Tensor:
    """Weight of every position, float[B, Q, S], without gradient; the first step of a row weighs one.

    A token outside the draft's vocabulary has log acceptance -inf; under survival nothing after it counts.
    """
    if weighting is Weighting.GEOMETRIC:
        steps_S = torch.arange(log_accepts_BQS.shape[-1]).to(log_accepts_BQS)
        return (GEOMETRIC_RATIO**steps_S).expand_as(log_accepts_BQS)
    survived_BQS = log_accepts_BQS.detach().cumsum(-1).exp()
    return functional.pad(survived_BQS[..., :-1], (1, 0), value=1.0)


def weighted_loss(losses_BQS: Tensor, weights_BQS: Tensor, mask_BQS: Tensor, rounds: float) -> Tensor:
    """Mean over `rounds` of the weighted sum over steps: the scalar loss. Masked positions add exactly nothing.

    Dividing by rounds, not by the weights, keeps the loss that of a round: a row that survives further counts
    for more.
    """
    return (losses_BQS * weights_BQS).masked_fill(~mask_BQS, 0.0).sum() / max(rounds, 1)


def mean_acceptance(log_accepts_BQS: Tensor, mask_BQS: Tensor) -> Tensor:
    """Mean A per step over the unmasked rows, float[S]; 0 at a step without any."""
    accepts_BQS = log_accepts_BQS.detach().exp().masked_fill(~mask_BQS, 0.0)
    return accepts_BQS.sum((0, 1)) / mask_BQS.sum((0, 1)).clamp(min=1)


def served_probs(logprobs_NK: Tensor, temperature: float, top_k: int = -1, top_p: float = 1.0) -> Tensor:
    """The distribution a request was sampled from, as far as the teacher's top-K shows it, float32[N, K].

    `logprobs_NK` are best first and untempered (temperature 1, over the whole vocabulary); `temperature` is
    above 0, `top_k` -1 for no limit. Order as in SGLang: temperature, top_k, then top_p.

    Truncation to K: ratios between the K entries are exact at any temperature, only the tail is missing, and
    renormalising puts the tail at zero. Cross-entropy is linear in p, so scaling the K entries up again is the
    same as giving the position the weight 1 instead of the mass it showed: positions with a flat teacher are
    not counted for less. The price is a draft slightly sharper than the target; the tail mass bounds the
    change of sum_v p q.
    """
    probs_NK = (logprobs_NK.float() / temperature).softmax(-1)
    if 0 < top_k < probs_NK.shape[1]:
        probs_NK = renormalised(probs_NK * (torch.arange(probs_NK.shape[1], device=probs_NK.device) < top_k))
    if top_p < 1.0:
        better_NK = probs_NK.cumsum(-1) - probs_NK
        probs_NK = renormalised(probs_NK * (better_NK < top_p))
    return probs_NK


def teacher_in_draft_vocabulary(
    ids_NK: Tensor, probs_NK: Tensor, target_to_draft_W: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Translate a teacher of target ids into the draft's vocabulary: ids[N, K], probs[N, K] and has_label bool[N].

    `target_to_draft_W` holds -1 for tokens outside the draft's vocabulary. Their entries get probability zero and the
    rest is renormalised; has_label is False where nothing is left.
    """
    draft_ids_NK = target_to_draft_W[ids_NK]
    kept_NK = probs_NK * (draft_ids_NK >= 0)
    return draft_ids_NK.clamp(min=0), renormalised(kept_NK), kept_NK.sum(-1) > 0


def onto_grid(values_N: Tensor, mask_BQS: Tensor, fill: float) -> Tensor:
    """Put the N values of the unmasked positions, in row-major order, back on their grid; gradients pass."""
    grid_BQS = torch.full(mask_BQS.shape, fill, dtype=values_N.dtype, device=values_N.device)
    return grid_BQS.masked_scatter(mask_BQS, values_N)


def renormalised(probs_NK: Tensor) -> Tensor:
    """Rows scaled to sum to one, float[..., K]; rows of zeros stay zeros."""
    return probs_NK / probs_NK.sum(-1, keepdim=True).clamp(min=torch.finfo(probs_NK.dtype).tiny)
