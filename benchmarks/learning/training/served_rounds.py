"""Verify rounds as they were served: what was drafted, and the teacher at every node, accepted or not.

Axes as in learner/training/batch.py; R served rounds of a trace, N verified nodes that draft steps predict from,
P = N - 1 drafts fed. Node i follows the root and drafts 0 to i - 1, and step i of the chain from row root - 1 predicts
the token after it. Up to the first rejection, i <= accepted, the path is committed text; after it nothing is, and only
the teacher knows what the target would have written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ....buffer.trace import NO_DRAFT, DraftTrace
from ....learner.training.batch import draftable_rows, teacher_probs
from .labels import tempered_probs


@dataclass(frozen=True, slots=True, eq=False)
class ServedRounds:
    """Rounds of B traces; the padded ones have no node."""

    rows_BR: Tensor  # int64, row each round was drafted from; 0 where padded
    drafted_BRP: Tensor  # int64 target ids; 0 after a shorter chain
    nodes_BR: Tensor  # int64, nodes to predict from; 0 where padded
    accepted_BR: Tensor  # int64, drafts accepted
    teacher_ids_BRNK: Tensor  # int64 target ids
    teacher_probs_BRNK: Tensor  # float32, sums to one at every node

    def judged_mask(self) -> Tensor:
        """Nodes that the teacher judged, bool."""
        return self._depths < self.nodes_BR[..., None]

    def off_path_mask(self) -> Tensor:
        """Nodes after the first rejected draft, bool; the one at the rejection is still on committed text."""
        return self.judged_mask() & (self._depths > self.accepted_BR[..., None])

    @property
    def _depths(self) -> Tensor:
        return torch.arange(self.teacher_ids_BRNK.shape[2], device=self.rows_BR.device)


def collate_rounds(
    traces: Sequence[DraftTrace],
    device: torch.device,
    steps: int,
    *,
    rejected_only: bool = False,
) -> ServedRounds:
    """Pad the rounds of `traces` on `device`, at most `steps` nodes of each; R may be 0.

    Left out: rounds without a recorded teacher or without a row to draft from, and, under `rejected_only`, those
    that have no node after a rejection. The teacher is at the request's own sampling, greedy ones with all on its
    best token.
    """
    kept = [_kept(trace, steps, rejected_only) for trace in traces]
    shape = len(traces), max(map(len, kept), default=0)
    nodes = min(steps, max((trace.rounds.drafted.shape[1] + 1 for trace in traces), default=1))
    width = max((trace.rounds.teacher_ids.shape[2] for trace in traces), default=0)
    grids = ServedRounds(
        rows_BR=torch.zeros(shape, dtype=torch.int64),
        drafted_BRP=torch.zeros(*shape, nodes - 1, dtype=torch.int64),
        nodes_BR=torch.zeros(shape, dtype=torch.int64),
        accepted_BR=torch.zeros(shape, dtype=torch.int64),
        teacher_ids_BRNK=torch.zeros(*shape, nodes, width, dtype=torch.int64),
        teacher_probs_BRNK=torch.zeros(*shape, nodes, width),
    )
    for line, (trace, of) in enumerate(zip(traces, kept, strict=True)):
        if len(of):
            _write(grids, line, trace, of)
    return ServedRounds(**{field.name: getattr(grids, field.name).to(device) for field in fields(grids)})


def sharpened_rounds(rounds: ServedRounds, temperature: float) -> ServedRounds:
    """The same rounds with `tempered_probs` of their teacher."""
    judged_BRN1 = rounds.judged_mask()[..., None]
    if not judged_BRN1.any():
        return rounds
    sharp_BRNK = tempered_probs(rounds.teacher_probs_BRNK, temperature)
    return replace(rounds, teacher_probs_BRNK=torch.where(judged_BRN1, sharp_BRNK, rounds.teacher_probs_BRNK))


def _nodes(trace: DraftTrace, steps: int) -> npt.NDArray[np.int64]:
    """Nodes of each round, int64[R]: root and drafts, as far as steps predict from them."""
    drafts_R: npt.NDArray[np.int64] = (trace.rounds.drafted != NO_DRAFT).sum(1)
    return np.minimum(drafts_R + 1, steps)


def _kept(trace: DraftTrace, steps: int, rejected_only: bool) -> npt.NDArray[np.int64]:
    rounds = trace.rounds
    is_kept_R = (rounds.starts >= 1) & (rounds.starts <= draftable_rows(trace))
    if rejected_only:
        is_kept_R &= rounds.accepted + 1 < _nodes(trace, steps)
    return np.flatnonzero(is_kept_R) if rounds.teacher_ids.shape[2] else np.zeros(0, np.int64)


def _write(grids: ServedRounds, line: int, trace: DraftTrace, of: npt.NDArray[np.int64]) -> None:
    """Put the rounds `of` a trace on its line of `grids`."""
    rounds, total = trace.rounds, grids.teacher_ids_BRNK.shape[2]
    ids_RNK, logprobs_RNK = rounds.teacher_ids[of, :total], rounds.teacher_logprobs[of, :total]
    probs_NK = teacher_probs(logprobs_RNK.reshape(-1, logprobs_RNK.shape[2]), trace.sampling)
    _fill(grids.rows_BR[line], rounds.starts[of] - 1)
    _fill(grids.drafted_BRP[line], rounds.drafted[of, : total - 1].clip(min=0))
    _fill(grids.nodes_BR[line], _nodes(trace, total)[of])
    _fill(grids.accepted_BR[line], rounds.accepted[of])
    _fill(grids.teacher_ids_BRNK[line], ids_RNK)
    _fill(grids.teacher_probs_BRNK[line], probs_NK.numpy().reshape(ids_RNK.shape))


def _fill(grid: Tensor, values: npt.NDArray[Any]) -> None:
    grid[tuple(slice(size) for size in values.shape)] = torch.from_numpy(np.ascontiguousarray(values)).to(grid.dtype)
