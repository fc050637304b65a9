"""Draft trees: building them from what the drafter selected, and walking them against the target's greedy choice.

B requests, N nodes per tree with node 0 the root (the last committed token), D the deepest path plus one. Links are
[B, N] node numbers, -1 for none: `next_token` is a node's first child, `next_sibling` the next child of its parent.
Siblings are in ascending order. Semantics follow SGLang's CUDA kernels (kernels/jit/include/sgl_kernel/speculative).
"""

import torch
from torch import Tensor

_QLEN_ONLY = 1  # SGLang's TreeMaskMode for one N x N square per request, its default on a CPU


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill mask, positions and links of every request's tree, in place.

    Selected candidate i (node i + 1) has flat index selected_index[b, i]. Its quotient by `topk` names its parent's
    place in parent_list[b], whose entry is the parent's flat index; place 0 is the root. `tree_mask` (flat) gets
    B * N * N values: does node j lie on the path from the root to node i, i itself included. `positions` (flat) gets
    sequence length + depth. A node whose parent was not selected is left out of the links and hangs below the root.
    Raises NotImplementedError for the mask layouts of GPU kernels.
    """
    if int(tree_mask_mode) != _QLEN_ONLY:
        raise NotImplementedError(f"tree_mask_mode is {tree_mask_mode}, expected {_QLEN_ONLY} (QLEN_ONLY) on a CPU")
    parent_BN = _selected_parents(parent_list, selected_index, topk)
    on_path_BNN = _ancestors(parent_BN.clamp(min=0), depth)
    tree_mask.view(-1)[: on_path_BNN.numel()] = on_path_BNN.reshape(-1)
    _fill_positions(positions, on_path_BNN, verified_seq_len)
    _fill_links(retrive_index, retrive_next_token, retrive_next_sibling, parent_BN)


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Fill positions and links, in place, from the masks (flat B * N * N; row i marks node i's ancestors)."""
    mask_BNN = tree_mask.reshape(-1)[: batch_size * draft_token_num**2].view(batch_size, draft_token_num, -1).bool()
    above_BNN = mask_BNN.tril(-1)
    nearest_BN = (above_BNN * torch.arange(draft_token_num)).amax(-1)
    parent_BN = torch.where(above_BNN.any(-1), nearest_BN, -1)
    _fill_positions(positions, above_BNN | torch.eye(draft_token_num, dtype=torch.bool), verified_seq_len)
    _fill_links(retrive_index, retrive_next_token, retrive_next_sibling, parent_BN)


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk every tree from its root to the child that equals the target's choice, until none does.

    `accept_index` is [B, D], `accept_token_num` [B], `predicts` flat B * N, the last five [B, N]. Writes the path's
    global node numbers to the front of `accept_index`, the number of accepted drafts to `accept_token_num`, and the
    target's choice after every node of the path to `predicts`; everything else stays as the caller left it.
    """
    if candidates.shape[1] == 1:
        _keep_roots(predicts, accept_index, accept_token_num, retrive_index[:, 0], target_predict.reshape(-1))
        return
    trees = zip(
        candidates.tolist(),
        retrive_index.tolist(),
        retrive_next_token.tolist(),
        retrive_next_sibling.tolist(),
        strict=True,
    )
    target = target_predict.reshape(-1)
    choices = target.tolist()
    for b, (tokens, index, child, sibling) in enumerate(trees):
        path = _greedy_path(tokens, index, child, sibling, choices, accept_index.shape[1])
        nodes = torch.tensor(path)
        accept_index[b, : len(path)] = nodes.to(accept_index.dtype)
        accept_token_num[b] = len(path) - 1
        predicts[nodes] = target[nodes].to(predicts.dtype)


def _keep_roots(
    predicts: Tensor, accept_index: Tensor, accept_token_num: Tensor, roots_B: Tensor, target: Tensor
) -> None:
    """As `verify_tree_greedy_cpu` where nothing was drafted: all trees at once, since every decode step may be one."""
    accept_index[:, 0] = roots_B.to(accept_index.dtype)
    accept_token_num.zero_()
    predicts[roots_B] = target[roots_B].to(predicts.dtype)


def _greedy_path(
    tokens: list[int], index: list[int], child: list[int], sibling: list[int], choices: list[int], longest: int
) -> list[int]:
    """Global numbers of the nodes the target agrees with, the root first; at most `longest` of them."""
    node = 0
    path = [index[node]]
    while len(path) < longest:
        node = child[node]
        while node != -1 and tokens[node] != choices[path[-1]]:
            node = sibling[node]
        if node == -1:
            break
        path.append(index[node])
    return path


def _selected_parents(parent_list: Tensor, selected_index: Tensor, topk: int) -> Tensor:
    """Parent of every node, [B, N]; -1 for the root and for a node whose parent was not selected."""
    place = selected_index // topk
    wanted = parent_list.gather(1, place.clamp(max=max(parent_list.shape[1] - 1, 0))) if place.any() else place
    child_of_selected = _first(selected_index[:, None, :] == wanted[:, :, None])
    parent = torch.where(child_of_selected >= 0, child_of_selected + 1, -1)
    return torch.nn.functional.pad(torch.where(place == 0, 0, parent), (1, 0), value=-1)


def _ancestors(parent_BN: Tensor, depth: int) -> Tensor:
    """Whether node j is node i or above it, bool [B, N, N], for trees at most `depth` deep."""
    size = parent_BN.shape[1]
    itself = torch.eye(size, dtype=torch.bool).expand(parent_BN.shape[0], size, size)
    above = parent_BN[:, :, None].expand(-1, -1, size)
    on_path = itself
    for _ in range(depth):
        on_path = itself | on_path.gather(1, above)
    return on_path


def _fill_positions(positions: Tensor, on_path_BNN: Tensor, seq_lens_B: Tensor) -> None:
    depth_BN = on_path_BNN.sum(-1) - 1
    positions.view(-1)[: depth_BN.numel()] = (seq_lens_B[:, None] + depth_BN).reshape(-1).to(positions.dtype)


def _fill_links(index_BN: Tensor, next_token_BN: Tensor, next_sibling_BN: Tensor, parent_BN: Tensor) -> None:
    nodes = torch.arange(parent_BN.shape[1])
    is_sibling = (parent_BN[:, :, None] == parent_BN[:, None, :]) & (nodes[None, :] > nodes[:, None])
    index_BN.copy_(torch.arange(parent_BN.numel()).view_as(parent_BN))
    next_token_BN.copy_(_first(parent_BN[:, None, :] == nodes[None, :, None]))
    next_sibling_BN.copy_(torch.where(parent_BN >= 0, _first(is_sibling), -1))


def _first(mask: Tensor) -> Tensor:
    """Index of the first True along the last axis, -1 where there is none."""
    return torch.where(mask.any(-1), mask.int().argmax(-1), -1)
