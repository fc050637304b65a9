"""REINFORCE on accept and reject flags: J when nothing but the verdicts on proposed tokens is known.

Axes: R served rounds, S draft steps. Step i of a round proposed a token, judged when all before it were accepted.

    gradient of J  =  E[ sum_i  grad log q(a_i) * ( sum_{j>=i} c_j r_j  -  c_i b_i ) ]

- r_j is 1 when draft j was accepted. What an action earned begins at itself.
- c_j = prod_{m<=j} q(a_m) / q_old(a_m) corrects for drafts proposed by another version, cut off at `clip`
  (truncated importance weights, as in V-trace, arXiv 1802.01561). Without the cut the gradient is unbiased when
  q_old proposed; with it steps that q_old hardly ever took count for less.
- b_i is the leave-one-out baseline (Kool et al. 2019; RLOO, arXiv 2402.14740): what the other rounds that got as far
  as step i earned from there. It does not depend on the round's own actions, so it adds no bias. Chosen here: the
  other rounds are those of the batch, not more samples of the same context, and their earnings are not weighted.

Flags are all that counts where a token's acceptance depends on the token alone: greedy and target_only. Under rejection
it also falls as q grows past p, which flags do not show; what is learned there goes on raising q of accepted tokens.
An engine that proposes argmax q explores nothing: a_i is then no draw from q_old, and the gradient is that of a
draft that had drawn it.
"""

import torch
from torch import Tensor

RATIO_CLIP = 2.0


def reinforce_losses(
    logq_RS: Tensor, logq_old_RS: Tensor, judged_RS: Tensor, accepted_RS: Tensor, clip: float = RATIO_CLIP
) -> Tensor:
    """Minus the weighted accepted length of every round, float[R]; its gradient is the one above, with minus.

    `logq_RS` is log q of the proposed tokens with gradient, `logq_old_RS` the same of the version that proposed.
    What they hold where a step was not judged is not read. `accepted_RS` implies `judged_RS`.
    """
    logq_RS = logq_RS.masked_fill(~judged_RS, 0.0)
    with torch.no_grad():
        log_ratio_RS = (logq_RS - logq_old_RS).masked_fill(~judged_RS, 0.0)
        weights_RS = log_ratio_RS.cumsum(1).exp().clamp(max=clip)
        earned_RS = weights_RS * accepted_RS
        baselines_RS = leave_one_out_baselines(judged_RS, accepted_RS).to(earned_RS)
        advantages_RS = (_to_go(earned_RS) - weights_RS * baselines_RS).masked_fill(~judged_RS, 0.0)
    surrogate_R = -(logq_RS * advantages_RS).sum(1)
    return -earned_RS.sum(1) + (surrogate_R - surrogate_R.detach())


def leave_one_out_baselines(judged_RS: Tensor, accepted_RS: Tensor) -> Tensor:
    """Mean accepted drafts from step i on, over the other rounds judged there, float[R, S]; 0 without any."""
    earned_RS = _to_go(accepted_RS.float()) * judged_RS
    others_RS = judged_RS.sum(0) - judged_RS.long()
    return (earned_RS.sum(0) - earned_RS) / others_RS.clamp(min=1)


def _to_go(values_RS: Tensor) -> Tensor:
    return values_RS.flip(1).cumsum(1).flip(1)
