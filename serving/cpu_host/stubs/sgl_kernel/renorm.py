"""Cutting distributions down to what a request may sample. N rows, V tokens; all return a fresh [N, V].

Tokens of equal probability count in ascending order, so that top_k 1 is the argmax: in a batch that samples, SGLang
verifies a greedy request as top_k 1.
"""

import torch
from torch import Tensor


def top_k_renorm_prob(probs: Tensor, top_ks: Tensor) -> Tensor:
    """Keep the `top_ks[n]` (>= 1) most probable tokens of each row; renormalised."""
    sorted_NV, token_NV = probs.sort(dim=-1, descending=True, stable=True)
    is_kept_NV = torch.arange(probs.shape[-1]) < top_ks[:, None]
    return _renormalised(sorted_NV * is_kept_NV, token_NV)


def top_p_renorm_prob(probs: Tensor, top_ps: Tensor) -> Tensor:
    """Keep the fewest most probable tokens of each row whose mass reaches `top_ps[n]` of (0, 1]; renormalised."""
    sorted_NV, token_NV = probs.sort(dim=-1, descending=True, stable=True)
    mass_before_NV = sorted_NV.double().cumsum(-1) - sorted_NV
    # A sum may round up to 1 before its end, and no limit must cut nothing.
    is_kept_NV = (mass_before_NV < top_ps[:, None]) | (top_ps[:, None] >= 1)
    return _renormalised(sorted_NV * is_kept_NV, token_NV)


def _renormalised(sorted_NV: Tensor, token_NV: Tensor) -> Tensor:
    """Each row with sum 1, every value back at its token."""
    return torch.zeros_like(sorted_NV).scatter_(-1, token_NV, sorted_NV / sorted_NV.sum(-1, keepdim=True))
