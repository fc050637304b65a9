"""Divergences of DistillSpec (Zhou et al., arXiv 2310.08461) beside forward KL: reverse KL and Jensen-Shannon.

Axes as in losses.py. The paper applies them to text that the target, the draft, or both wrote; here the text is
the committed one, which the target wrote, and in `on_policy_mix` also what the draft proposed.

Both sum over the whole vocabulary, of which the teacher shows K entries. All other tokens are one bucket, on which
q has what the K entries leave. By the log-sum inequality a divergence between bucketed distributions is a lower
bound of the divergence between the whole ones.
"""

import math

import torch
from torch import Tensor

from ..losses import log_probs_at

#: What the teacher is taken to give to all tokens it does not show, so that KL(q || p) is finite: a chosen floor.
#: Mass of q outside the K entries costs log(1 / floor) = 6.9 nats at most.
TAIL_FLOOR = 1e-3
_LEAST = 1e-7
#: lambda of `on_policy_mix`: both kinds of text count alike.
ON_POLICY_SHARE = 0.5


def reverse_kl_losses(logits_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor) -> Tensor:
    """KL(q || p) over the shown tokens and one bucket for the rest, float[N].

    The paper takes p from whole logits and has no floor; here p is (1 - TAIL_FLOOR) of the teacher, the bucket has
    TAIL_FLOOR. A value may come out above the true KL when the true tail is heavier than that.
    """
    logq_NK, shown_NK, tail_N = _split(logits_NV, ids_NK, probs_NK)
    logp_NK = torch.where(shown_NK, probs_NK, 1.0).log() + math.log1p(-TAIL_FLOOR)
    shown_N = torch.where(shown_NK, logq_NK.exp() * (logq_NK - logp_NK), 0.0).sum(1)
    return shown_N + tail_N * (tail_N.log() - math.log(TAIL_FLOOR))


def jensen_shannon_losses(logits_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor, beta: float = 0.5) -> Tensor:
    """beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q, float[N]; 0 < beta < 1.

    No floor is needed: where p is zero, m is (1 - beta) q and the term is -(1 - beta) log(1 - beta) q, so the bucket
    is summed exactly for a teacher whose tail is zero.
    """
    logq_NK, shown_NK, tail_N = _split(logits_NV, ids_NK, probs_NK)
    p_NK, q_NK = torch.where(shown_NK, probs_NK, 1.0), logq_NK.exp()
    logm_NK = (beta * p_NK + (1.0 - beta) * q_NK).log()
    terms_NK = beta * p_NK * (p_NK.log() - logm_NK) + (1.0 - beta) * q_NK * (logq_NK - logm_NK)
    return torch.where(shown_NK, terms_NK, 0.0).sum(1) - (1.0 - beta) * math.log1p(-beta) * tail_N


def on_policy_mix(text_loss: Tensor, drafted_loss: Tensor, share: float = ON_POLICY_SHARE) -> Tensor:
    """(1 - share) * text_loss + share * drafted_loss, a scalar: the paper's training on text of both writers.

    DistillSpec draws that share of its sequences from the draft and has the target judge every token of them. Chosen
    here: what the draft wrote are the chains of served rounds, judged at every node as far as they go, also after
    the first rejection; they were drafted by the version that served, and greedily unless the server samples drafts;
    instead of drawing which text a step takes, both losses are summed, which has the same mean. Each is a mean over
    its own rounds. The divergence is forward KL in both, as cross-entropy.
    """
    return (1.0 - share) * text_loss + share * drafted_loss


def _split(logits_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log q of the entries, which of them the teacher gives anything to, and q of all other tokens, above zero."""
    logq_NK, shown_NK = log_probs_at(logits_NV, ids_NK), probs_NK > 0
    tail_N = 1.0 - torch.where(shown_NK, logq_NK.exp(), 0.0).sum(1)
    return logq_NK, shown_NK, tail_N.clamp(min=_LEAST)
