"""What penalties make of the target's logits after every verified node, counted token by token.

SGLang's own account takes one token of a round, the last, and gives every node of a round the same penalties. So the
answer would depend on how many drafts were accepted. W verified nodes of one request, V tokens, N tokens before the
first node; node 0 is the root, the last of the N.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def chain_paths(width: int, device: Any) -> Tensor:
    """float32 [W, W]: 1 where a node of a chain, itself or an earlier one, lies on the way to it; the root does not."""
    paths_WW = torch.ones(width, width, device=device).tril()
    paths_WW[:, 0] = 0.0
    return paths_WW


def tree_paths(children_W: Sequence[int], siblings_W: Sequence[int], device: Any) -> Tensor:
    """As `chain_paths`, of a tree: the first child and the next sibling of every node, -1 for none."""
    paths_WW = np.zeros((len(children_W), len(children_W)), np.float32)
    for node, child in enumerate(children_W):  # a child comes after its parent
        while child >= 0:
            paths_WW[child] = paths_WW[node]
            paths_WW[child, child] = 1.0
            child = siblings_W[child]  # noqa: PLW2901 - along the siblings
    return torch.from_numpy(paths_WW).to(device)


def edited(logits_WV: Tensor, req: Any, drafts_W: Tensor, paths_WW: Tensor) -> Tensor:
    """A copy of one request's logits with its penalties, which SGLang has not applied yet."""
    added_WV, scales_WV = penalties(req, drafts_W, paths_WW, logits_WV.shape[1])
    logits_WV = logits_WV + added_WV
    if scales_WV is None:
        return logits_WV
    return torch.where(logits_WV < 0, logits_WV * scales_WV, logits_WV / scales_WV)


def penalties(req: Any, drafts_W: Tensor, paths_WW: Tensor, vocabulary: int) -> tuple[Tensor, Tensor | None]:
    """What to add to the logits after every node, and what to scale them by then; float32 [W, V].

    In the order and the precision of SGLang's penalizers, so that sums are rounded as theirs. Never asks the device
    for a value.
    """
    params = req.sampling_params
    device = drafts_W.device
    width = len(drafts_W)
    before_N = _on_device(np.asarray(req.output_ids, np.int64), device)
    nodes_WW = drafts_W.long().expand(width, width)

    def counted(weight: float) -> Tensor:
        weights_N = torch.full(before_N.shape, weight, device=device)
        known_V = torch.zeros(vocabulary, device=device).scatter_add_(0, before_N, weights_N)
        return known_V.repeat(width, 1).scatter_add_(1, nodes_WW, weight * paths_WW)

    added_WV = torch.zeros(width, vocabulary, device=device)
    scales_WV = None
    if params.frequency_penalty:
        added_WV -= counted(params.frequency_penalty)
    if params.presence_penalty:
        added_WV -= (counted(1.0) > 0) * params.presence_penalty
    if params.min_new_tokens > 0:
        is_short_W1 = (len(before_N) + paths_WW.sum(1, keepdim=True)) < params.min_new_tokens
        stops = np.fromiter((token for token in _stops(req) if 0 <= token < vocabulary), np.int64)
        is_stop_V = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        added_WV.masked_fill_(is_short_W1 & is_stop_V.index_fill_(0, _on_device(stops, device), value=True), -torch.inf)
    if params.repetition_penalty != 1.0:
        scales_WV = torch.where(counted(1.0) > 0, params.repetition_penalty, 1.0)
    return added_WV, scales_WV


def _stops(req: Any) -> Iterator[int]:
    """The tokens that would end it, which SGLang's BatchedMinNewTokensPenalizer forbids."""
    tokenizer = req.tokenizer
    for ids in (req.sampling_params.stop_token_ids, req.eos_token_ids, tokenizer.additional_stop_token_ids):
        yield from ids or ()
    if tokenizer.eos_token_id is not None:
        yield tokenizer.eos_token_id


def _on_device(values: np.ndarray[Any, np.dtype[np.int64]], device: Any) -> Tensor:
    """A copy that the host does not wait for: from memory that is not pinned it would wait for the target's forward."""
    tensor = torch.from_numpy(values.copy())
    if torch.device(device).type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
