"""Token bookkeeping between two verify rounds. B requests, all tensors on the CPU; integers of any width."""

import torch
from torch import Tensor


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """Write each request's last accepted token to `bonus_tokens`.

    `accept_tokens` is B rows of `accept_stride` tokens, flat; `accept_lens` (>= 1) counts the bonus token.
    """
    last_B = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[last_B])


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shift every request's tokens one to the left, in place, and put its new token at the end.

    Request b owns `extend_seq_lens[b]` tokens from `extend_start_loc[b]` on; empty ones stay untouched. Its new token
    is `topk_index[b]`. With `select_index` that goes to this index of `input_ids` instead, and the request's last token
    keeps its old value.
    """
    new_B = topk_index.reshape(-1).to(input_ids.dtype)
    for b, (start, length) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)):
        if length <= 0:
            continue
        end = start + length
        input_ids[start : end - 1] = input_ids[start + 1 : end].clone()
        input_ids[end - 1 if select_index is None else int(select_index[b])] = new_B[b]
