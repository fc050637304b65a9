"""The log of the expected acceptance, for each rule by which a server accepts a draft token.

Axes as in losses.py. With p the target's and q the draft's distribution at a position, A is

    greedy        q(committed token)      `losses.committed_losses` is -log A
    target_only   sum_v p(v) q(v)         a ~ q is accepted when the target draws it too; the server proposes
                                          argmax q, the limit of a sharp q
    rejection     sum_v min(p(v), q(v))   a ~ q is accepted with probability min(1, p(a) / q(a)); -log A is the
                                          -log alpha of LK (arXiv 2602.23881)

A greedy request has all of p on its committed token, and the three are the same: batches may mix rules.

The missing tail counts as zero. Under target_only renormalising multiplies A by one over the mass that was shown:
-log A shifts by a constant and its gradient is that of the entries shown. Under rejection A is off by at most the
tail's mass, in either direction: shown entries are scaled up, entries of the tail are left out.
"""

import torch
from torch import Tensor

from .losses import log_probs_at


def target_only_log_accepts(logits_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor) -> Tensor:
    """log sum_v p(v) q(v), float[N], with gradient. Each row of `probs_NK` must sum to one."""
    return (log_probs_at(logits_NV, ids_NK) + probs_NK.log()).logsumexp(1)


def rejection_log_accepts(logits_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor) -> Tensor:
    """log sum_v min(p(v), q(v)), float[N], with gradient. Each row of `probs_NK` must sum to one.

    Only entries with q < p have gradient. There is always one: p sums to one over the K entries, q to less.
    """
    return torch.minimum(log_probs_at(logits_NV, ids_NK), probs_NK.log()).logsumexp(1)


def matched_log_accepts(logits_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor, rejection_N: Tensor) -> Tensor:
    """log A under the rule of each position's trace, float[N], with gradient; `rejection_N` marks `rejection`."""
    logq_NK = log_probs_at(logits_NV, ids_NK)
    logp_NK = probs_NK.log()
    return torch.where(rejection_N[:, None], torch.minimum(logq_NK, logp_NK), logq_NK + logp_NK).logsumexp(1)
