"""The knife: one letter's arrays, cut into one step per captured request. The courier's work."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..buffer.trace import Float16s, Int32s
from .letters import (
    FEATURES,
    LOGITS,
    READ_IDS,
    TEACHER_IDS,
    TEACHER_LOGPROBS,
    VERDICTS,
    Arrays,
    PrefillHead,
    VerifyHead,
)
from .steps import NO_FEATURES, PrefillStep, Step, VerifyStep


@dataclass(frozen=True, slots=True)
class Forward:
    """One captured forward as it arrived."""

    head: VerifyHead | PrefillHead
    arrays: Arrays
    top_k: int

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The captured requests of its batch."""
        return self.head.request_ids

    def steps(self) -> list[Step]:
        """One step per request, in the order of `request_ids`; any exception when the arrays do not fit the head."""
        if isinstance(self.head, VerifyHead):
            return cut_verify(self.head, self.arrays, self.top_k)
        return cut_prefill(self.head, self.arrays)


def cut_verify(head: VerifyHead, arrays: Arrays, top_k: int) -> list[Step]:
    """Cut a verify round. Where the engine has no device whole logits come instead of a teacher, found here."""
    verdicts = arrays[VERDICTS]
    width, count = verdicts.shape[1] - 2, len(head.request_ids)
    ids, logprobs = _teacher(arrays, count, width, top_k)
    features = arrays.get(FEATURES, NO_FEATURES)
    depth = len(features) // count if len(features) else 0
    steps: list[Step] = []
    for i, (row, commit) in enumerate(zip(verdicts.tolist(), head.commits, strict=True)):
        accepted = row[width + 1] - 1  # SGLang counts the bonus token
        kept = features[i * depth : i * depth + min(accepted + 1, depth)]
        steps.append(
            VerifyStep(
                head.request_ids[i], head.draft_version, row[width], row[0],
                verdicts[i, 1:width], accepted, ids[i], logprobs[i], kept, head.feature_dtype, commit,
            )
        )  # fmt: skip
    return steps


def cut_prefill(head: PrefillHead, arrays: Arrays) -> list[Step]:
    """Cut a prefill."""
    ids, features = arrays[READ_IDS], arrays.get(FEATURES, NO_FEATURES)
    rows = zip(head.request_ids, head.facts, head.spans, head.commits, strict=True)
    return [
        PrefillStep(
            request_id, head.draft_version, facts, start,
            ids[begin:end], features[begin:end], head.feature_dtype, commit,
        )
        for request_id, facts, (start, begin, end), commit in rows
    ]  # fmt: skip


def top_logprobs(logits: npt.NDArray[np.float32], top_k: int) -> tuple[Int32s, Float16s]:
    """The `top_k` most likely entries of the last axis and their log-probabilities, falling."""
    shape = (*logits.shape[:-1], top_k)
    rows_RV = logits.reshape(-1, logits.shape[-1]).astype(np.float32, copy=False)
    some_RK = np.argpartition(rows_RV, -top_k, axis=1)[:, -top_k:]
    falling_RK = np.argsort(-np.take_along_axis(rows_RV, some_RK, 1), axis=1, kind="stable")
    ids_RK = np.take_along_axis(some_RK, falling_RK, 1)
    best_R1 = np.take_along_axis(rows_RV, ids_RK[:, :1], 1)
    norm_R1 = best_R1 + np.log(np.exp(rows_RV - best_R1).sum(axis=1, keepdims=True))
    logprobs_RK = np.take_along_axis(rows_RV, ids_RK, 1) - norm_R1
    return ids_RK.astype(np.int32).reshape(shape), logprobs_RK.astype(np.float16).reshape(shape)


def _teacher(arrays: Arrays, count: int, width: int, top_k: int) -> tuple[Int32s, Float16s]:
    if LOGITS in arrays:
        return top_logprobs(arrays[LOGITS], top_k)
    if TEACHER_IDS in arrays:
        return arrays[TEACHER_IDS], arrays[TEACHER_LOGPROBS]
    return np.zeros((count, width, 0), np.int32), np.zeros((count, width, 0), np.float16)
