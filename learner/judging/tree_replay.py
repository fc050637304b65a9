"""Replay of draft trees: how many drafts of one would have been accepted on recorded text.

A tree grows as in SGLang's `draft_forward`, `select_top_k_tokens` and `organize_draft_results`: a child's score is its
probability times its parent's score, the K best children of a step's K branches are the branches of the next step, and
the best of all children are verified. A branch is fed the hidden state of its parent, but sees the keys of its own
place in the steps before, whichever branch was there: SGLang moves no keys.

Axes: B traces, R feature rows, Q rounds, P rounds that go on, K branches, N branches of all rounds,
X children, S draft steps.
"""

import torch
from torch import Tensor

from ...buffer.stream.trace import TreeShape
from ..model.chain_draft import ChainDraft, DraftChains
from ..model.draft import rows_at
from ..training.batch import Batch

#: Traces times branches times padded keys of one block of rounds: bounds the attention scores to 64 MB per head.
_SCORES_PER_BLOCK = 1 << 24


def replay_trees(draft: ChainDraft, batch: Batch, tree: TreeShape) -> Tensor:
    """Accepted drafts by row, int64[B, R]. `draft` does not change."""
    runs_BR = batch.rows_BQ.new_zeros(batch.features_BFD.shape[:2])
    width = max(_SCORES_PER_BLOCK // (runs_BR.numel() * tree.topk), 1)
    predicted_BQS = batch.predicted(tree.steps).clamp(max=batch.tokens_BT.shape[1] - 1)
    committed_BQS = batch.tokens_BT.gather(1, predicted_BQS.flatten(1)).view_as(predicted_BQS)
    committed_BQS = committed_BQS.masked_fill(~batch.scored_mask(tree.steps), -1)
    for rows_BQ, block_BQS in zip(*(torch.split(x, width, 1) for x in (batch.rows_BQ, committed_BQS)), strict=True):
        chains = draft.begin(batch.tokens_BT, batch.features_BFD, rows_BQ, batch.opens_text_B)
        index_BP, accepted_BP = _accepted(draft, chains, block_BQS, tree)
        runs_BR.scatter_add_(1, rows_BQ.gather(1, index_BP), accepted_BP)
    return runs_BR


def _accepted(draft: ChainDraft, chains: DraftChains, committed_BQS: Tensor, tree: TreeShape) -> tuple[Tensor, Tensor]:
    """Indices (into Q) of the rounds that may have a draft accepted, and how many each has, int64[B, P] both."""
    topk = min(tree.topk, draft.config.draft_vocab_size)
    scores_BQK, tokens_BQK = _children(draft, draft.advance(chains), topk)
    may_accept_BQ = (tokens_BQK == committed_BQS[..., :1]).any(-1)
    index_BP = may_accept_BQ.sort(dim=1, descending=True, stable=True).indices[:, : int(may_accept_BQ.sum(1).max())]
    if not index_BP.shape[1]:
        return index_BP, index_BP
    scores_BPK, tokens_BPK, committed_BPS = (rows_at(x, index_BP) for x in (scores_BQK, tokens_BQK, committed_BQS))
    chains.keep(index_BP.repeat_interleave(topk, 1))
    is_committed_BPK = tokens_BPK == committed_BPS[..., :1]  # the branch that is the committed text so far
    first_P1 = torch.arange(index_BP.shape[1], device=index_BP.device)[:, None] * topk
    scored = [scores_BPK]
    committed = [is_committed_BPK]
    for step in range(1, tree.steps):
        chances, children = _children(draft, draft.advance(chains, tokens_BPK.flatten(1)), topk)
        is_next = (children == committed_BPS[..., step : step + 1].repeat_interleave(topk, 1)).view(
            *tokens_BPK.shape, -1
        )
        scored.append((scores_BPK[..., None] * chances.view(*tokens_BPK.shape, -1)).flatten(2))
        committed.append((is_committed_BPK[..., None] & is_next).flatten(2))
        scores_BPK, chosen_BPK = scored[-1].topk(topk)
        tokens_BPK = children.view_as(scored[-1]).gather(2, chosen_BPK)
        is_committed_BPK = committed[-1].gather(2, chosen_BPK)
        chains.hand_over((first_P1 + chosen_BPK // topk).flatten(1))
    scores_BPX = torch.cat(scored, -1)
    best_BPN = scores_BPX.topk(min(tree.nodes - 1, scores_BPX.shape[-1])).indices
    is_verified_BPX = torch.zeros_like(scores_BPX, dtype=torch.bool).scatter(-1, best_BPN, value=True)
    by_step = zip(torch.split(is_verified_BPX, [each.shape[-1] for each in scored], -1), committed, strict=True)
    is_accepted = [(is_verified & is_committed).any(-1) for is_verified, is_committed in by_step]
    return index_BP, torch.stack(is_accepted, -1).long().cumprod(-1).sum(-1)


def _children(draft: ChainDraft, hidden_BQH: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    """The likeliest tokens of every branch and their probability, [B, Q, K] each."""
    chances_NK, tokens_NK = draft.likeliest(hidden_BQH.flatten(0, 1), topk)
    return chances_NK.view(*hidden_BQH.shape[:2], topk), tokens_NK.view(*hidden_BQH.shape[:2], topk)
