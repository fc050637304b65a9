"""Draft verification by coins, for temperature above 0: SGLang's two rules, both of which emit tokens exactly as the
target alone would have sampled them.

B requests, N nodes per tree with node 0 the root, D the deepest path plus one, V tokens. Links are those of tree.py;
`predicts` is flat B * N, `accept_index` [B, D], `accept_token_num` [B], `candidates` and links [B, N], `target_probs`
[B, N, V] the distribution after each node, `uniform_samples` [B, N] and `uniform_samples_for_final_sampling` [B] the
coins, in [0, 1). Nothing is drawn here: the same coins give the same tokens. Both rules write the accepted path's
global node numbers to the front of `accept_index`, the number of accepted drafts to `accept_token_num`, and the token
committed after every node of the path to `predicts`; everything else stays as the caller left it.
"""

import torch
from torch import Tensor


def tree_speculative_sampling_target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """`target_only`: of a node's children, in order, accept the first whose mass, added to that of the siblings before
    it, exceeds the node's coin; where none does, draw from p without the children.

    With thresholds under 1 also accept a child whose own mass reaches `threshold_single`, and divide the summed mass by
    `threshold_acc`: faster, and no longer the target's distribution. `draft_probs` stays unread: SGLang passes zeros.
    Source: kernels/jit/include/sgl_kernel/speculative/sampling.cuh.
    """
    final_BV = torch.empty_like(target_probs[:, 0])
    paths = []
    for b, tokens in enumerate(candidates.tolist()):
        mass_NN = target_probs[b][:, candidates[b]].tolist()
        links = retrive_next_token[b].tolist(), retrive_next_sibling[b].tolist()
        coins = [coin * max(threshold_acc, 1e-9) for coin in uniform_samples[b].tolist()]
        path, refused = _walk(mass_NN, links, coins, accept_index.shape[1], threshold_single)
        final_BV[b] = target_probs[b, path[-1]]
        final_BV[b, [tokens[node] for node in refused]] = 0.0
        paths.append(path)
    last_BV = target_probs[torch.arange(len(paths)), [path[-1] for path in paths]]
    drawn_B = _draw(final_BV, last_BV, uniform_samples_for_final_sampling)
    _commit(predicts, accept_index, accept_token_num, candidates, retrive_index, paths, drawn_B)


def chain_speculative_sampling_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
) -> None:
    """`rejection`: along a chain whose token i + 1 was drawn from q = `draft_probs`[b, i] ([B, N - 1, V]), accept while
    coin * q < p, that is with min(1, p / q); after the first rejection draw from max(p - q, 0), else from p.

    A q that is no probability counts as 0: its token is rejected and replaced by a draw from p.
    Leviathan et al. 2023, algorithm 1; source: kernels/ops/speculative/reject_sampling.py.
    """
    rows_B = torch.arange(len(candidates))
    chain_len = candidates.shape[1]
    drafts_BN1 = candidates[:, 1:, None]
    p_BN = target_probs[:, :-1].gather(2, drafts_BN1)[..., 0]
    q_BN = _probability(draft_probs.gather(2, drafts_BN1)[..., 0])
    is_accepted_BN = (q_BN > 0) & (uniform_samples[:, :-1] * q_BN < p_BN)
    accepted_B = is_accepted_BN.int().cumprod(1).sum(1)
    p_BV = target_probs[rows_B, accepted_B]
    q_BV = _probability(draft_probs[rows_B, accepted_B.clamp(max=chain_len - 2)])
    is_rejected_B1 = (accepted_B < chain_len - 1)[:, None]
    drawn_B = _draw((p_BV - q_BV * is_rejected_B1).clamp(min=0), p_BV, uniform_samples_for_final_sampling)
    paths = [list(range(accepted + 1)) for accepted in accepted_B.tolist()]
    _commit(predicts, accept_index, accept_token_num, candidates, retrive_index, paths, drawn_B)


def _walk(
    mass_NN: list[list[float]], links: tuple[list[int], list[int]], coins: list[float], longest: int, single: float
) -> tuple[list[int], list[int]]:
    """The accepted path, the root first, and the children refused at its end; mass_NN[i][j] is p of j's token at i."""
    first_child, next_sibling = links
    path = [0]
    while len(path) < longest:
        node = path[-1]
        child = first_child[node]
        refused = list[int]()
        summed = 0.0
        while child != -1:
            mass = mass_NN[node][child]
            summed += mass
            if mass > 0 and (coins[node] < summed or mass >= single):
                break
            refused.append(child)
            child = next_sibling[child]
        if child == -1:
            return path, refused
        path.append(child)
    return path, []


def _draw(weights_BV: Tensor, instead_BV: Tensor, coins_B: Tensor) -> Tensor:
    """One token per row with probability proportional to its weight; int64 [B].

    A row that rounding has left without any weight is drawn from `instead_BV`: SGLang's kernels then emit the last
    token of the vocabulary, whatever its probability.
    """
    weights_BV = torch.where(weights_BV.sum(-1, keepdim=True) > 0, weights_BV, instead_BV)
    summed_BV = weights_BV.double().cumsum(-1)
    return torch.searchsorted(summed_BV, coins_B.double()[:, None] * summed_BV[:, -1:], right=True)[:, 0]


def _commit(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    paths: list[list[int]],
    drawn_B: Tensor,
) -> None:
    for b, path in enumerate(paths):
        nodes = retrive_index[b, path]
        accept_index[b, : len(path)] = nodes.to(accept_index.dtype)
        accept_token_num[b] = len(path) - 1
        predicts[nodes[:-1]] = candidates[b, path[1:]].to(predicts.dtype)
        predicts[nodes[-1]] = drawn_B[b].to(predicts.dtype)


def _probability(q: Tensor) -> Tensor:
    return torch.where((q >= 0) & (q <= 1), q, 0.0)
