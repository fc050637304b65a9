"""Group tree optimisation (GTO, Hu et al., arXiv 2509.22134), for chains.

Axes as in losses.py. The loss is L_token + omega * L_group: the token loss is soft cross-entropy, and the group
loss moves probability along accepted sequences of rows where the draft does better than a frozen reference draft.

- Reward of a row: (1/eta) log sum over branches of exp(eta L), with L the sum of the target's prefix probabilities
  along the branch. A chain has one branch, so the reward is L: the expected number of accepted drafts.
- Advantage: the reward minus the reference's on the same row, standardised within a group of adjacent rows.
- Surrogate: PPO's min(s A, clip(s) A), s the likelihood ratio to the reference along the longest accepted sequence.

Chosen here, where the paper has a target to ask: the chain is the draft's best token at each step, and the target's
probability of following it is known along the committed text only. While the chain agrees with that text, its prefix
probability is replaced by one, from the first disagreement on by zero; the next token's probability is the teacher's.
Over committed texts that is unbiased, as P(text agrees) is the prefix probability. s is the geometric mean over
the accepted sequence, so that `clip` does not depend on its length; rows without one have no surrogate.
Groups of 8, clip 0.2 and omega 1 are choices too; the paper reports groups of 4 to 8.

A token outside the teacher's top-K has probability zero: a best token there ends the chain without reward.
"""

import torch
from torch import Tensor
from torch.nn import functional

GROUP_ROWS = 8
GROUP_WEIGHT = 1.0
RATIO_CLIP = 0.2
_LEAST_DEVIATION = 1e-6


def best_token_probs(logits_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor) -> Tensor:
    """The teacher's probability of the draft's best token, float[N], without gradient."""
    best_N1 = logits_NV.detach().argmax(1, keepdim=True)
    return torch.where(ids_NK == best_N1, probs_NK, 0.0).sum(1)


def chain_rewards(agrees_BQS: Tensor, probs_BQS: Tensor) -> Tensor:
    """Expected accepted drafts of every row's best chain, float[B, Q].

    `agrees_BQS` says that the best token is the committed one, `probs_BQS` what the target gives it; False and 0
    at positions that do not count.
    """
    return (_reached(agrees_BQS) * probs_BQS).sum(-1)


def group_advantages(gains_BQ: Tensor, mask_BQ: Tensor, rows: int = GROUP_ROWS) -> Tensor:
    """Gains standardised within groups of `rows` adjacent rows of a trace, float[B, Q]; 0 outside the mask.

    Deviations divide by the number of rows; a group in which all rows gain the same has advantage 0.
    """
    padding = -mask_BQ.shape[1] % rows
    mask_BGR = functional.pad(mask_BQ, (0, padding)).view(len(mask_BQ), -1, rows)
    gains_BGR = functional.pad(gains_BQ * mask_BQ, (0, padding)).view_as(mask_BGR)
    counts_BG1 = mask_BGR.sum(-1, keepdim=True).clamp(min=1)
    centred_BGR = (gains_BGR - gains_BGR.sum(-1, keepdim=True) / counts_BG1) * mask_BGR
    deviations_BG1 = (centred_BGR.square().sum(-1, keepdim=True) / counts_BG1).sqrt()
    standard_BGR = centred_BGR / deviations_BG1.clamp(min=_LEAST_DEVIATION)
    return standard_BGR.flatten(1)[:, : mask_BQ.shape[1]]


def group_losses(
    logq_BQS: Tensor, logq_reference_BQS: Tensor, agrees_BQS: Tensor, advantages_BQ: Tensor, clip: float = RATIO_CLIP
) -> Tensor:
    """-min(s A, clip(s) A) of every row, float[B, Q]; 0 for rows whose first draft is wrong.

    `logq_BQS` is log q of the committed tokens, with gradient; what it holds after the accepted sequence is not read.
    """
    accepted_BQS = agrees_BQS.cumprod(-1).bool()
    lengths_BQ = accepted_BQS.sum(-1)
    log_ratio_BQS = (logq_BQS - logq_reference_BQS.detach()).masked_fill(~accepted_BQS, 0.0)
    ratio_BQ = (log_ratio_BQS.sum(-1) / lengths_BQ.clamp(min=1)).exp()
    clipped_BQ = ratio_BQ.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio_BQ * advantages_BQ, clipped_BQ * advantages_BQ) * (lengths_BQ > 0)


def _reached(agrees_BQS: Tensor) -> Tensor:
    """1 while all steps before agreed, else 0."""
    return functional.pad(agrees_BQS.cumprod(-1)[..., :-1], (1, 0), value=1)
