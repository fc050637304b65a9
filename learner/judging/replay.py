"""Replay: how many drafts would have been accepted on recorded text, without a server and without the target's logits.

Axes: B traces, R feature rows, Q chains still alive, N chains that predict a token inside their trace, S draft steps.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ...buffer.stream.trace import DraftTrace, Float32s, Int32s, TreeShape
from ...policies.objectives.losses import log_probs_at
from ..model.chain_draft import ChainDraft
from ..model.draft import Draft, DraftRounds
from ..model.logits import logits_of, positions_per_chunk
from ..training.batch import Batch, collate, draftable_rows, verdict_rows
from .tree_replay import replay_trees

#: Padded rows times padded keys of one group: bounds the attention scores to 64 MB per head.
_SCORES_PER_GROUP = 1 << 24
_TRACES_PER_GROUP = 16


@torch.inference_mode()
def replay_traces(
    draft: Draft, traces: Sequence[DraftTrace], steps: int, *, only_verdicts: bool = False
) -> list[Int32s]:
    """Per trace int32[T]: how many of `steps` drafts of a verify round rooted at tokens[s] would be accepted.

    A draft is accepted when the most likely token, given the chain's own hidden states, is the committed one; a run
    ends with the trace. -1 where there is no feature to draft from: s == 0 or s above the number of feature rows. Of a
    trace with a `tree`, such trees are drafted, whatever `steps` is.
    `draft` does not change. With `only_verdicts`, -1 also where no round could have started: in the context, most of
    the work where prompts are long, and at the last token.
    """
    runs = [np.full(len(trace.tokens), -1, np.int32) for trace in traces]
    rows_of = verdict_rows if only_verdicts else _every_row
    by_tree: dict[TreeShape | None, list[int]] = defaultdict(list)
    for i, trace in enumerate(traces):
        if len(rows_of(trace)):
            by_tree[trace.tree].append(i)
    for tree, group in ((tree, group) for tree, found in by_tree.items() for group in _groups(traces, found)):
        batch = collate([traces[i] for i in group], draft.device, every_row=not only_verdicts)
        if tree is not None and isinstance(draft, ChainDraft):
            run_BR = replay_trees(draft, batch, tree)
        else:
            run_BR = _replay(draft, batch, steps)
        for i, run_R in zip(group, run_BR.cpu().numpy(), strict=True):
            rows = rows_of(traces[i])
            runs[i][rows + 1] = run_R[rows]
    return runs


@torch.inference_mode()
def replay_logprobs(draft: Draft, traces: Sequence[DraftTrace], steps: int) -> list[Float32s]:
    """Per trace float32[T, steps]: log q of tokens[s + 1 + j] as draft j of a verify round rooted at tokens[s].

    q is what `draft`, fed the committed tokens up to that one, would have drawn it from: at the request's temperature,
    which must be above 0, and without its top-k and top-p, as SGLang draws drafts under rejection sampling. -inf for a
    token outside the draft's vocabulary. NaN where a trace has no such token, no feature to draft from, or no verdict
    on the token after the root. `draft` does not change.
    """
    found = [np.full((len(trace.tokens), steps), np.nan, np.float32) for trace in traces]
    judged = [i for i, trace in enumerate(traces) if len(verdict_rows(trace))]
    for group in _groups(traces, judged):
        temperatures = torch.tensor([traces[i].sampling.temperature for i in group], device=draft.device)
        batch = collate([traces[i] for i in group], draft.device)
        for i, logq_QS in zip(group, _replay_logprobs(draft, batch, temperatures, steps).cpu().numpy(), strict=True):
            rows = verdict_rows(traces[i])
            found[i][rows + 1] = logq_QS[: len(rows)]
    return found


def _every_row(trace: DraftTrace) -> Int32s:
    return np.arange(draftable_rows(trace), dtype=np.int32)


def _groups(traces: Sequence[DraftTrace], can_draft: Sequence[int]) -> Iterator[list[int]]:
    """The indices `can_draft`, similar lengths together so that little is padded."""
    group: list[int] = []
    for i in sorted(can_draft, key=lambda i: len(traces[i].tokens)):
        is_full = (len(group) + 1) * len(traces[i].tokens) ** 2 > _SCORES_PER_GROUP or len(group) == _TRACES_PER_GROUP
        if group and is_full:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _replay(draft: Draft, batch: Batch, steps: int) -> Tensor:
    """Accepted drafts by row, int64[B, R]. Chains are dropped at their first rejection, most of them early."""
    chains = draft.begin(batch.tokens_BT, batch.features_BFD, batch.rows_BQ, batch.opens_text_B)
    runs_BR = batch.rows_BQ.new_zeros(len(batch.rows_BQ), batch.features_BFD.shape[1])
    is_alive_BQ = batch.row_mask_BQ
    for _ in range(steps):
        is_alive_BQ = is_alive_BQ & (chains.predicted() < batch.lengths_B[:, None])
        is_alive_BQ = _keep_alive(chains, is_alive_BQ)
        if not is_alive_BQ.shape[1]:
            break
        is_alive_BQ = _advance(draft, chains, batch.tokens_BT, is_alive_BQ)
        runs_BR.scatter_add_(1, chains.rows_BQ, is_alive_BQ.long())
    return runs_BR


def _keep_alive(chains: DraftRounds, is_alive_BQ: Tensor) -> Tensor:
    """Keep the columns that the trace with most live chains needs; return which chains in them are alive."""
    most = int(is_alive_BQ.sum(1).max())
    if most == is_alive_BQ.shape[1]:
        return is_alive_BQ
    index_BP = is_alive_BQ.sort(dim=1, descending=True, stable=True).indices[:, :most]
    chains.keep(index_BP)
    return is_alive_BQ.gather(1, index_BP)


def _advance(draft: Draft, chains: DraftRounds, tokens_BT: Tensor, is_alive_BQ: Tensor) -> Tensor:
    predicted_BQ = chains.predicted().clamp(max=tokens_BT.shape[1] - 1)
    committed_BQ = tokens_BT.gather(1, predicted_BQ)
    hidden_BQH = draft.advance(chains)
    is_hit_N = draft.best_tokens(hidden_BQH[is_alive_BQ]) == committed_BQ[is_alive_BQ]
    return torch.zeros_like(is_alive_BQ).masked_scatter(is_alive_BQ, is_hit_N)


def _replay_logprobs(draft: Draft, batch: Batch, temperatures_B: Tensor, steps: int) -> Tensor:
    """Log q of the committed tokens by row and step, float32[B, Q, S]; NaN outside the trace. No chain is dropped."""
    chains = draft.begin(batch.tokens_BT, batch.features_BFD, batch.rows_BQ, batch.opens_text_B)
    inside_BQS = batch.scored_mask(steps)
    predicted_BQS = batch.predicted(steps).clamp(max=batch.tokens_BT.shape[1] - 1)
    found_BQS = torch.full(inside_BQS.shape, torch.nan, device=draft.device)
    for step in range(steps):
        inside_BQ = inside_BQS[..., step]
        hidden_NH = draft.advance(chains)[inside_BQ]
        committed_N = batch.tokens_BT.gather(1, predicted_BQS[..., step])[inside_BQ]
        logq_N = _token_logprobs(draft, hidden_NH, committed_N, temperatures_B[:, None].expand_as(inside_BQ)[inside_BQ])
        found_BQS[..., step] = found_BQS[..., step].masked_scatter(inside_BQ, logq_N)
    return found_BQS


def _token_logprobs(draft: Draft, hidden_NH: Tensor, tokens_N: Tensor, temperatures_N: Tensor) -> Tensor:
    """Log q of target ids, float32[N]; logits live for a chunk at a time."""
    ids_N = draft.target_to_draft_W[tokens_N]
    most = positions_per_chunk(draft.config.draft_vocab_size)
    parts = [
        log_probs_at(
            logits_of(hidden_NH[i : i + most], draft.lm_head.weight) / temperatures_N[i : i + most, None],
            ids_N[i : i + most, None].clamp(min=0),
        )[:, 0]
        for i in range(0, len(ids_N), most)
    ]
    logq_N = torch.cat(parts) if parts else temperatures_N.new_empty(0)
    return logq_N.masked_fill(ids_N < 0, float("-inf"))
