"""How good a draft's first position is and how good it could be, which separates a cold draft from uncertain text.

Axes as in batch.py; N rows with a verdict.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...buffer.stream.trace import DraftTrace
from ..model.draft import Draft
from .batch import collate, teacher_nodes, verdict_rows
from .device_memory import PartBound
from .rank_group import joined

_MOST_TRACES = 16


@dataclass(frozen=True, slots=True)
class FirstPosition:
    """Means over the rows of some traces; NaN without a row."""

    accept: float  # chance that the draft's best token is the target's, as the request was sampled
    attainable: float  # the same of the target's likeliest token: 1 for greedy text, less the more uncertain text is

    @property
    def share(self) -> float:
        """Share of the attainable acceptance reached. Temperature lowers a perfect draft's chance, not its share."""
        return self.accept / self.attainable


@torch.no_grad()
def first_position(draft: Draft, traces: Sequence[DraftTrace], bound: PartBound) -> FirstPosition:
    """Measure `traces`, each with a row to draft from, in parts within `bound`; changes nothing else.

    Of several ranks, which have the same traces, each measures its share.

    Rows of a sampled request that no captured teacher has judged are left out: the committed token alone does not say
    what was attainable. Where no row has a teacher it is used all the same, and uncertain text looks cold.
    """
    leaves_out = any(judged_rows(trace).any() for trace in traces)

    def sums_of(part: Sequence[DraftTrace]) -> tuple[float, float, int]:
        """Summed accept and attainable, and the rows they are sums of."""
        best_N, ids_NK, probs_NK = _best_and_teacher(draft, part)
        if leaves_out:
            kept_N = torch.from_numpy(np.concatenate([judged_rows(trace) for trace in part])).to(draft.device)
            best_N = best_N[kept_N]
            ids_NK = ids_NK[kept_N]
            probs_NK = probs_NK[kept_N]
        accept = float(probs_NK[ids_NK == best_N[:, None]].sum())
        return accept, float(probs_NK.amax(dim=1).sum()), len(best_N)

    ranks = joined()
    own = ranks.share(traces) if ranks else traces
    found = bound.map(sums_of, own, restart=lambda: None, most_traces=_MOST_TRACES)
    sums = [sum(column) for column in zip((0.0, 0.0, 0), *found, strict=True)]
    accept, attainable, rows = ranks.totals(sums) if ranks else sums
    return FirstPosition(accept / rows, attainable / rows) if rows else FirstPosition(math.nan, math.nan)


def judged_rows(trace: DraftTrace) -> npt.NDArray[np.bool_]:
    """Return for each of `verdict_rows` whether the trace says what its first draft could be; all of a greedy one."""
    rows = verdict_rows(trace)
    if trace.sampling.temperature <= 0.0:
        return np.ones(len(rows), bool)
    judged: npt.NDArray[np.bool_] = teacher_nodes(trace)[rows + 2] >= 0
    return judged


def _best_and_teacher(draft: Draft, traces: Sequence[DraftTrace]) -> tuple[Tensor, Tensor, Tensor]:
    batch = collate(traces, draft.device, soft=True)
    if batch.teacher_ids_BTK is None or batch.teacher_probs_BTK is None:
        raise AssertionError("a batch collated with soft=True has no teacher")
    hidden_BQH = draft.advance(draft.begin(batch.tokens_BT, batch.features_BFD, batch.rows_BQ, batch.opens_text_B))
    judged_BQ1 = (batch.rows_BQ + 2)[..., None]
    at_BQK = judged_BQ1.expand(-1, -1, batch.teacher_ids_BTK.shape[2])
    mask_BQ = batch.row_mask_BQ
    best_N = draft.best_tokens(hidden_BQH[mask_BQ])
    return best_N, batch.teacher_ids_BTK.gather(1, at_BQK)[mask_BQ], batch.teacher_probs_BTK.gather(1, at_BQK)[mask_BQ]
