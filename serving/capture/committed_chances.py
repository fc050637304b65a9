"""What rejection sampling needs for a later estimate: the chance of each committed token under target and draft.

policies/rejection.py derives from the target's what any draft would have had accepted.
"""

from typing import Any

import torch
from torch import Tensor


def committed_logprobs(result: Any, verify_input: Any, batch: Any, logits_NV: Tensor) -> Tensor:
    """float32 [B, W, 2]: logarithm of both chances of the token that was committed after each node of a chain.

    `result` is what eagle_sample returned, `logits_NV` what it verified. NaN after nodes that committed nothing, of the
    draft after the last node, and of the target for a request that top-k or top-p limits: SGLang verifies it against a
    distribution that it does not hand out. Never asks the device for a value.
    """
    predict_N, accept_lens_B, _ = result
    width = verify_input.draft_token_num
    batch_size = len(accept_lens_B)
    committed_BW = predict_N.view(batch_size, width).long()
    info = batch.sampling_info
    scaled_BWV = logits_NV.float().view(batch_size, width, -1) / info.temperatures.view(-1, 1, 1)
    best_BW = scaled_BWV.gather(-1, committed_BW.unsqueeze(-1)).squeeze(-1)
    target_BW = torch.where(_is_limited(info, scaled_BWV.shape[-1]), torch.nan, best_BW - scaled_BWV.logsumexp(-1))
    draft_BW = _draft_logprobs(verify_input.draft_probs, committed_BW)
    is_committed_BW = torch.arange(width, device=accept_lens_B.device) < accept_lens_B.unsqueeze(1)
    both_BW2 = torch.stack((target_BW, draft_BW), dim=-1)
    return torch.where(is_committed_BW.unsqueeze(-1), both_BW2, torch.nan).float()


def _is_limited(info: Any, vocab_size: int) -> Tensor:
    """bool [B, 1]: whether the target's distribution is cut before it verifies."""
    is_limited_B: Tensor = (info.top_ps.view(-1) < 1.0) | (info.top_ks.view(-1) < vocab_size)
    return is_limited_B.unsqueeze(1)


def _draft_logprobs(draft_probs_BSV: Tensor | None, committed_BW: Tensor) -> Tensor:
    if draft_probs_BSV is None:
        return torch.full(committed_BW.shape, torch.nan, device=committed_BW.device)
    steps = draft_probs_BSV.shape[1]
    chances_BS = draft_probs_BSV.gather(-1, committed_BW[:, :steps].unsqueeze(-1)).squeeze(-1).float()
    return torch.nn.functional.pad(chances_BS.log(), (0, committed_BW.shape[1] - steps), value=torch.nan)
