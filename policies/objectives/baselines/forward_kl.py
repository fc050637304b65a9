"""Forward KL, up to the teacher's entropy, on part of the positions: Aurora's release, OSD, AdaSPEC.

Axes as in losses.py. All three are `losses.soft_losses` and differ in which positions count and how much.
Cross-entropy is linear in p, so a missing tail only changes how much a position weighs: renormalised, it weighs one.
"""

import math

import torch
from torch import Tensor

from ..losses import position_weights, soft_losses
from ..names import Weighting

#: Share of the positions that AdaSPEC keeps.
SELECTED_SHARE = 0.4


def accepted_weights(log_accepts_BQS: Tensor, mask_BQS: Tensor, rounds: float) -> Tensor:
    """Weights that make `weighted_loss` of soft losses the loss of Aurora's release, float[B, Q, S]:

        sum_i 0.8^i mean over valid positions of [ -sum_v p(v) log q_i(v) ]

    From aurora/models/eagle3.py and ops/loss.py (arXiv 2602.06932; its text also trains on discarded drafts, its
    code does not): every draft step has its own mean over the accepted text, that is all tokens that were committed,
    the target's own among them; p is at temperature 1 whatever the request's; it is taken over the draft's
    vocabulary and positions whose most likely token is outside are not valid. Chosen here: prompt positions,
    which no verdict belongs to, are left out, as for every objective that is compared at equal traces.
    """
    valid_S = mask_BQS.sum((0, 1)).clamp(min=1)
    return position_weights(log_accepts_BQS, Weighting.GEOMETRIC) * rounds / valid_S


def wrong_position_losses(logits_NV: Tensor, committed_N: Tensor, ids_NK: Tensor, probs_NK: Tensor) -> Tensor:
    """Cross-entropy to the teacher where the draft's best token is not the committed one, else 0, float[N].

    OSD (arXiv 2310.07177) keeps the positions that the target corrected while serving. Chosen here: positions where
    the draft as it is now would be corrected, from every row a round could start at; OSD's draft sees each position
    once and forgets its buffer after each update, which comes to the same. OSD takes the mean over wrong positions;
    here their sum per round is weighted by position as for every other objective.
    """
    is_wrong_N = logits_NV.argmax(1) != committed_N
    return soft_losses(logits_NV, ids_NK, probs_NK)[0] * is_wrong_N


def selective_losses(
    logits_NV: Tensor, reference_NV: Tensor, ids_NK: Tensor, probs_NK: Tensor, share: float = SELECTED_SHARE
) -> Tensor:
    """Cross-entropy to the teacher at the selected share of positions, divided by that share, else 0, float[N].

    AdaSPEC (arXiv 2510.19779): selected are the positions with the largest L_draft - L_reference, where the reference,
    a draft distilled before with forward KL, shows that a draft can do better; tokens hard for both are given up.
    The entropy of p cancels in the difference, so cross-entropies compare as KL does. Chosen here, after the authors'
    code: the share is taken over the batch, the paper takes it over each sequence.
    """
    losses_N = soft_losses(logits_NV, ids_NK, probs_NK)[0]
    with torch.no_grad():
        gap_N = losses_N - soft_losses(reference_NV, ids_NK, probs_NK)[0]
        selected_N = torch.zeros_like(losses_N)
        selected_N[gap_N.topk(math.ceil(share * len(gap_N))).indices] = 1.0 / share
    return losses_N * selected_N
