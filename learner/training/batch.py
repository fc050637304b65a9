"""Traces as tensors: padded tokens and features, the rows to draft from, and what each token should have been.

Axes: B traces, T tokens, F feature rows, D feature width, Q rows drafted from, S draft steps, K teacher entries.
Padding is zero and never reaches a loss: rows look back only, and what follows a trace is masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...buffer.errors import ConfigError
from ...buffer.stream.trace import DraftTrace, Int32s, Sampling, VerdictRule, no_tokens
from ...policies.objectives.losses import served_probs


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Batch:
    """B traces, each with at least one row to draft from. `rows_BQ` is padded with row 0, marked in `row_mask_BQ`."""

    tokens_BT: Tensor  # int64, target ids
    lengths_B: Tensor  # int64
    features_BFD: Tensor  # float32
    rows_BQ: Tensor  # int64
    row_mask_BQ: Tensor  # bool
    rejection_B: Tensor  # bool, judged under `rejection`
    opens_text_B: Tensor | None = None  # bool, the window begins with its text's first token; None: all do
    context_BQ: Tensor | None = None  # bool, rows of `context_rows`; None: without any
    teacher_ids_BTK: Tensor | None = None  # int64 target ids, indexed by the token they judge; None: committed only
    teacher_probs_BTK: Tensor | None = None  # float32, sums to one

    def scored_mask(self, steps: int) -> Tensor:
        """Return which (row, step) predict a token inside the trace, bool[B, Q, steps]."""
        inside_BQS = self.predicted(steps) < self.lengths_B[:, None, None]
        return inside_BQS & self.row_mask_BQ[..., None]

    def predicted(self, steps: int) -> Tensor:
        """Position that step k of a row predicts, row + 2 + k, int64[B, Q, steps]."""
        return self.rows_BQ[..., None] + 2 + torch.arange(steps, device=self.rows_BQ.device)


def draftable_rows(trace: DraftTrace) -> int:
    """Feature rows that have a next token to start from: roots tokens[1] up to tokens[rows]."""
    return max(min(len(trace.features), len(trace.tokens) - 1), 0)


def verdict_rows(trace: DraftTrace) -> Int32s:
    """Rows whose first prediction is a committed token: every place where a round could have started.

    Not only the recorded roots: with other weights the rounds would have started elsewhere.
    """
    return np.arange(max(trace.context_len - 2, 0), min(len(trace.features), len(trace.tokens) - 2), dtype=np.int32)


def context_rows(trace: DraftTrace) -> Int32s:
    """Rows of the context that may be trained on beside the verdict rows: the nearest before them, no more than these.

    What they predict was read, in most traces from a prompt, and not committed. The bound keeps a long prompt with a
    short answer from taking all of the training.
    """
    begin = max(trace.context_len - 2, 0)
    verdicts = len(verdict_rows(trace))
    return np.arange(max(begin - verdicts, 0), begin if verdicts else 0, dtype=np.int32)


def verdict_rows_by_step(traces: Sequence[DraftTrace], steps: int) -> npt.NDArray[np.int64]:
    """Return how many of the traces' `verdict_rows` predict a token inside their trace at each step, int64[steps]."""
    counts_S = np.zeros(steps, np.int64)
    for trace in traces:
        predicted_QS = verdict_rows(trace)[:, None] + 2 + np.arange(steps)
        counts_S += (predicted_QS < len(trace.tokens)).sum(0)
    return counts_S


def summed_weights(traces: Sequence[DraftTrace], context_weight: float) -> float:
    """Return what the rows of traces count: each row with a verdict 1, each of the context `context_weight`."""
    context = sum(len(context_rows(trace)) for trace in traces) if context_weight else 0
    return sum(len(verdict_rows(trace)) for trace in traces) + context_weight * context


def teacher_nodes(trace: DraftTrace) -> Int32s:
    """Return for each token the verified node that judged it, given exactly the tokens before it; -1: none; int32[T].

    Node n of round r (numbered r * (S + 1) + n) follows the root and n drafts. Its path is the committed text
    when all n drafts were accepted, n <= accepted[r], and it then judges tokens[starts[r] + 1 + n]. Nodes after a
    rejection follow text that was never committed. Since the next root is the token after the accepted
    drafts, every token from the first root on is judged once, but for those whose node has no known teacher; (row p,
    step k) reads the node of token p + 2 + k.
    """
    rounds = trace.rounds
    width = trace.rounds.drafted.shape[1] + 1
    node_RN = np.arange(len(rounds) * width, dtype=np.int32).reshape(len(rounds), width)
    depth_N = np.arange(width)
    judged_RN = rounds.starts[:, None] + 1 + depth_N
    is_known_RN = np.isfinite(rounds.teacher_logprobs[..., :1]).any(-1)
    accepted_RN = (depth_N <= rounds.accepted[:, None]) & (judged_RN < len(trace.tokens)) & is_known_RN
    nodes_T = np.full(len(trace.tokens), -1, np.int32)
    nodes_T[judged_RN[accepted_RN]] = node_RN[accepted_RN]
    return nodes_T


def collate(
    traces: Sequence[DraftTrace],
    device: torch.device,
    *,
    every_row: bool = False,
    with_context: bool = False,
    soft: bool = False,
) -> Batch:
    """Pad `traces` into one Batch on `device`.

    Drafts from the rows that a verdict exists for, with those of the context before them (`with_context`), or from
    all that can draft (`every_row`). `soft` adds the teacher, at each request's own sampling. Traces without a row must
    be left out before. ConfigError when feature widths differ.
    """
    before = [context_rows(trace) if with_context else no_tokens() for trace in traces]
    rows = [
        np.arange(draftable_rows(trace)) if every_row else np.concatenate([context, verdict_rows(trace)])
        for trace, context in zip(traces, before, strict=True)
    ]
    is_context = [np.arange(len(of_trace)) < len(context) for of_trace, context in zip(rows, before, strict=True)]
    teacher_ids_BTK, teacher_probs_BTK = _soft_labels(traces) if soft else (None, None)
    return Batch(
        tokens_BT=torch.from_numpy(_padded([trace.tokens for trace in traces])).to(device),
        lengths_B=torch.tensor([len(trace.tokens) for trace in traces], device=device),
        features_BFD=torch.from_numpy(_padded_features(traces)).to(device),
        rows_BQ=torch.from_numpy(_padded(rows)).to(device),
        row_mask_BQ=torch.from_numpy(_padded([np.ones(len(r)) for r in rows]).astype(bool)).to(device),
        rejection_B=torch.tensor([trace.verdict_rule is VerdictRule.REJECTION for trace in traces], device=device),
        opens_text_B=torch.tensor([trace.offset == 0 for trace in traces], device=device),
        context_BQ=torch.from_numpy(_padded(is_context).astype(bool)).to(device) if with_context else None,
        teacher_ids_BTK=None if teacher_ids_BTK is None else teacher_ids_BTK.to(device),
        teacher_probs_BTK=None if teacher_probs_BTK is None else teacher_probs_BTK.to(device),
    )


def teacher_probs(logprobs_NK: npt.NDArray[Any], sampling: Sampling) -> Tensor:
    """Return what the target samples from at N nodes, float32[N, K].

    `logprobs_NK` are a trace's, best first, K at least 1. A greedy request has all of it on the first entry.
    """
    if sampling.temperature <= 0.0:
        probs_NK = torch.zeros(logprobs_NK.shape)
        probs_NK[:, 0] = 1.0
        return probs_NK
    return served_probs(torch.from_numpy(logprobs_NK), sampling.temperature, sampling.top_k, sampling.top_p)


def _padded(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    out = np.zeros((len(arrays), max(map(len, arrays))), np.int64)
    for line, array in zip(out, arrays, strict=True):
        line[: len(array)] = array
    return out


def _padded_features(traces: Sequence[DraftTrace]) -> npt.NDArray[np.float32]:
    widths = {trace.features.shape[1] for trace in traces}
    if len(widths) > 1:
        raise ConfigError(f"features: got widths {sorted(widths)} in one batch, expected one; do not mix targets")
    out = np.zeros((len(traces), max(len(trace.features) for trace in traces), *widths), np.float32)
    for lines, trace in zip(out, traces, strict=True):
        lines[: len(trace.features)] = trace.feature_numbers()
    return out


def _soft_labels(traces: Sequence[DraftTrace]) -> tuple[Tensor, Tensor]:
    """Teacher of every token; all probability on the committed token where no node judged it.

    A committed token is a draw from the distribution it replaces, so the replacement is unbiased; for greedy
    requests it is that distribution.
    """
    width = max(1, *(trace.rounds.teacher_ids.shape[2] for trace in traces))
    length = max(len(trace.tokens) for trace in traces)
    ids_BTK = torch.zeros(len(traces), length, width, dtype=torch.int64)
    probs_BTK = torch.zeros(len(traces), length, width)
    probs_BTK[..., 0] = 1.0
    for trace, ids_TK, probs_TK in zip(traces, ids_BTK, probs_BTK, strict=True):
        ids_TK[: len(trace.tokens), 0] = torch.from_numpy(trace.tokens.astype(np.int64))
        _write_teacher(trace, ids_TK, probs_TK)
    return ids_BTK, probs_BTK


def _write_teacher(trace: DraftTrace, ids_TK: Tensor, probs_TK: Tensor) -> None:
    rounds = trace.rounds
    width = rounds.teacher_ids.shape[2]
    if width == 0 or trace.sampling.temperature <= 0.0:
        return
    nodes_T = teacher_nodes(trace)
    judged = np.flatnonzero(nodes_T >= 0)
    nodes = nodes_T[nodes_T >= 0]
    logprobs_NK = rounds.teacher_logprobs.reshape(-1, width)[nodes]
    ids_TK[judged, :width] = torch.from_numpy(rounds.teacher_ids.reshape(-1, width)[nodes].astype(np.int64))
    probs_TK[judged, :width] = teacher_probs(logprobs_NK, trace.sampling)
