"""The drafts of a verify round as one path of nodes per request, whether the server drafted a chain or a tree.

B requests, W verified nodes each, D nodes on the longest path with the root. Nodes are counted over the whole batch, as
in SGLang's `accept_index`: node n of request b is b * W + n.
"""

from typing import Any

import torch
from torch import Tensor

from ...buffer.stream.trace import TreeShape


def is_tree(verify_input: Any) -> bool:
    """Whether more than one draft may follow a node."""
    return bool(verify_input.tree_topk != 1)


def tree_of(accept_index: Tensor, verify_input: Any) -> TreeShape | None:
    """How a draft grew the trees; None of chains, and of NGRAM's trees, which are of no width."""
    topk = verify_input.tree_topk
    return TreeShape(accept_index.shape[1] - 1, topk, verify_input.draft_token_num) if topk > 1 else None


def tree_path(accept_lens: Tensor, accept_index: Tensor, verify_input: Any) -> Tensor:
    """The accepted path of every request and the first child of its last node, which was rejected: int64 [B, D].

    -1 after it, and in its place where that node has no child: it was a leaf, or NGRAM had found no draft.
    `accept_lens` [B] counts the root. Never asks the device for a value.
    """
    batch_size, depth = accept_index.shape
    width = verify_input.draft_token_num
    lens_B1 = accept_lens.long().unsqueeze(1)
    path_BD = accept_index.long()
    last_B1 = path_BD.gather(1, lens_B1 - 1)
    child_B1 = verify_input.retrieve_next_token.reshape(-1)[last_B1].long()  # counted within its request
    first_B1 = torch.arange(batch_size, device=path_BD.device).unsqueeze(1) * width
    child_B1 = torch.where(child_B1 >= 0, child_B1 + first_B1, -1)
    if verify_input.tree_topk < 0:  # NGRAM's, of no width
        child_B1 = child_B1.where(_has_found(verify_input), -1)
    # A path of full depth has no room for a child: the column that it gets instead is cut off.
    padded_BE = torch.nn.functional.pad(path_BD, (0, 1), value=-1)
    return padded_BE.scatter(1, lens_B1, child_B1)[:, :depth]


def _has_found(verify_input: Any) -> Tensor:
    """Whether NGRAM found any draft of a request, bool [B, 1]: where it has none, leaves of token 0 fill the tree.

    Where it has one they stand after it below the root, and SGLang accepts one of them if the target agrees. A leaf of
    token 0 that was all it found looks the same.
    """
    drafts_BJ = verify_input.draft_token.view(-1, verify_input.draft_token_num)[:, 1:]
    is_found_BJ: Tensor = (drafts_BJ != 0) | (verify_input.retrieve_next_token[:, 1:] >= 0)
    return is_found_BJ.any(dim=1, keepdim=True)


def tokens_on(path_RD: Tensor, draft_token: Tensor) -> Tensor:
    """Token of every node on the path, -1 where there is none: [R, D], `draft_token` flat over the batch."""
    tokens_RD = draft_token.reshape(-1)[path_RD.clamp(min=0)]
    return torch.where(path_RD >= 0, tokens_RD, -1)
