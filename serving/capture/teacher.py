"""The target's choices after every verified node, as far as a trace keeps them.

R captured requests, W nodes each, V tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..wire.messages import BEST_IDS, LOGITS, TEACHER_IDS, TEACHER_LOGPROBS
from ..wire.request_forward import TeacherWidth


def teacher_of(
    logits_BWV: Tensor, rows: Tensor | None, is_greedy: Sequence[bool], widths: TeacherWidth
) -> dict[str, Tensor]:
    """Teacher of the captured requests' nodes, after penalties, bias and grammar: see messages.py; none for width 0.

    `rows` are the captured requests of the batch, None for all of them; `is_greedy` is per captured request. Without an
    accelerator top-K would take the scheduler's own core, so whole logits are kept for the courier.
    """
    width = max(map(widths.of, is_greedy))
    if width == 0:
        return {}
    if has_best_alone(is_greedy, widths):
        return {BEST_IDS: best_tokens(rows_of(logits_BWV, rows))}
    if logits_BWV.device.type == "cpu":
        return {LOGITS: logits_BWV.clone() if rows is None else logits_BWV.index_select(0, rows)}
    logits_RWV = rows_of(logits_BWV, rows)
    values, ids = torch.topk(logits_RWV, width, dim=-1)
    logprobs = values - torch.logsumexp(logits_RWV, dim=-1, keepdim=True)
    return {TEACHER_IDS: ids.to(torch.int32), TEACHER_LOGPROBS: logprobs.to(torch.float16)}


def has_best_alone(is_greedy: Sequence[bool], widths: TeacherWidth) -> bool:
    """Whether the best token is all that is kept of the target's choices."""
    return max(map(widths.of, is_greedy)) == 1 and widths.greedy == 1 and (widths.sampled == 0 or all(is_greedy))


def best_tokens(logits: Tensor) -> Tensor:
    """int64 index of the highest logit; of equal ones any."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        # NumPy has vector instructions for it and PyTorch's CPU kernel has none: several times as fast.
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.max(dim=-1).indices


def rows_of(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """Those rows of its first axis; the tensor itself when `rows` is None, which needs no gather."""
    return tensor if rows is None else tensor.index_select(0, rows)
