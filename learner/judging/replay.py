"""Replay: how many drafts would have been accepted on recorded text, without a server and without logits.

Axes: B traces, R feature rows, Q chains still alive, N chains that predict a token inside their trace.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ...buffer.trace import DraftTrace, Int32s
from ..model.eagle3 import DraftChains, Eagle3Draft
from ..training.batch import Batch, collate, draftable_rows, verdict_rows

#: Padded rows times padded keys of one group: bounds the attention scores to 64 MB per head.
_SCORES_PER_GROUP = 1 << 24
_TRACES_PER_GROUP = 16


@torch.inference_mode()
def replay_traces(
    draft: Eagle3Draft, traces: Sequence[DraftTrace], steps: int, *, only_verdicts: bool = False
) -> list[Int32s]:
    """Per trace int32[T]: how many of `steps` drafts of a verify round rooted at tokens[s] would be accepted.

    A draft is accepted when the most likely token, given the chain's own hidden states, is the committed one; a run
    ends with the trace. -1 where there is no feature to draft from: s == 0 or s above the number of feature rows.
    `draft` does not change. With `only_verdicts`, -1 also where no round could have started: in the context, most of
    the work where prompts are long, and at the last token.
    """
    runs = [np.full(len(trace.tokens), -1, np.int32) for trace in traces]
    rows_of = verdict_rows if only_verdicts else _every_row
    for group in _groups(traces, [i for i, trace in enumerate(traces) if len(rows_of(trace))]):
        batch = collate([traces[i] for i in group], draft.device, every_row=not only_verdicts)
        for i, run_R in zip(group, _replay(draft, batch, steps).cpu().numpy(), strict=True):
            rows = rows_of(traces[i])
            runs[i][rows + 1] = run_R[rows]
    return runs


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


def _replay(draft: Eagle3Draft, batch: Batch, steps: int) -> Tensor:
    """Accepted drafts by row, int64[B, R]. Chains are dropped at their first rejection, most of them early."""
    chains = draft.begin(batch.tokens_BT, batch.features_BFD, batch.rows_BQ)
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


def _keep_alive(chains: DraftChains, is_alive_BQ: Tensor) -> Tensor:
    """Keep the columns that the trace with most live chains needs; return which chains in them are alive."""
    most = int(is_alive_BQ.sum(1).max())
    if most == is_alive_BQ.shape[1]:
        return is_alive_BQ
    index_BP = is_alive_BQ.sort(dim=1, descending=True, stable=True).indices[:, :most]
    chains.keep(index_BP)
    return is_alive_BQ.gather(1, index_BP)


def _advance(draft: Eagle3Draft, chains: DraftChains, tokens_BT: Tensor, is_alive_BQ: Tensor) -> Tensor:
    predicted_BQ = chains.predicted().clamp(max=tokens_BT.shape[1] - 1)
    committed_BQ = tokens_BT.gather(1, predicted_BQ)
    hidden_BQH = draft.advance(chains)
    is_hit_N = draft.best_tokens(hidden_BQH[is_alive_BQ]) == committed_BQ[is_alive_BQ]
    return torch.zeros_like(is_alive_BQ).masked_scatter(is_alive_BQ, is_hit_N)
