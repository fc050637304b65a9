"""-J and -log J: the expected accepted length of a whole chain, from the committed text.

Axes as in losses.py. A draft sampled token by token from q has

    J = sum_j  sum over a_1 .. a_j of  prod_{i<=j} q(a_i | a_<i) * accept(a_i)

over all paths it might draft, but the text shows one path, c ~ p. It is weighted by how much likelier the draft
follows it than the target does:

    J(c) = sum_j  [ prod_{i<j} f_i ] * A_j        f = q(c)               greedy, target_only
                                                  f = min(1, q(c)/p(c))  rejection

The expectation of J(c), and of its gradient, over c ~ p is J and its gradient: sum over c of p(c) f(c) is the sum
over drafted paths of q(c) * accept(c). (The product of all A_i along one text is not: the average of a product is
no product of averages.) The last factor is summed over all tokens, which leaves less variance than drawing it.

The missing tail: A as in ../acceptance.py. A committed token outside the draft's vocabulary or, under rejection,
one that the teacher does not show, ends the path with f = 0: J is then a lower bound, by at most what follows there.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ..losses import log_probs_at


def log_follows(
    logits_NV: Tensor, committed_N: Tensor, ids_NK: Tensor, probs_NK: Tensor, rejection_N: Tensor
) -> Tensor:
    """log f, float[N], with gradient. `committed_N` is -1 outside the draft's vocabulary."""
    logq_N = log_probs_at(logits_NV, committed_N.clamp(min=0)[:, None])[:, 0]
    p_N = torch.where(ids_NK == committed_N[:, None], probs_NK, 0.0).sum(1)
    ends_N = (committed_N < 0) | (rejection_N & (p_N == 0.0))
    # Divided by one where the rule is another or the path ends: an infinity would spoil the gradient.
    divisor_N = torch.where(rejection_N & ~ends_N, p_N, 1.0)
    return (logq_N - divisor_N.log()).clamp(max=0.0).masked_fill(ends_N, float("-inf"))


def expected_length_losses(log_accepts_BQS: Tensor, log_follows_BQS: Tensor) -> Tensor:
    """-J(c) of every row, float[B, Q]; both inputs are -inf at positions that do not count.

    The gradient of a row scales with its J: a draft that is never accepted learns nothing.
    """
    return -_log_terms(log_accepts_BQS, log_follows_BQS).exp().sum(-1)


def log_expected_length_losses(log_accepts_BQS: Tensor, log_follows_BQS: Tensor) -> Tensor:
    """-log J(c) of every row, float[B, Q]; 0 for rows without a first position, whose J is zero whatever q is."""
    terms_BQS = _log_terms(log_accepts_BQS, log_follows_BQS)
    counts_BQ = terms_BQS[..., 0] > float("-inf")
    return torch.zeros_like(terms_BQS[..., 0]).masked_scatter(counts_BQ, -terms_BQS[counts_BQ].logsumexp(-1))


def _log_terms(log_accepts_BQS: Tensor, log_follows_BQS: Tensor) -> Tensor:
    reached_BQS = functional.pad(log_follows_BQS.cumsum(-1)[..., :-1], (1, 0))
    return reached_BQS + log_accepts_BQS
