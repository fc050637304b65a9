"""Splits a captured forward of a batch into one RequestForward per captured request."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ...buffer.stream.trace import Float16s, Int32s
from ..wire.messages import (
    BEST_IDS,
    COMMITTED_LOGPROBS,
    FEATURES,
    LOGITS,
    NODES,
    PACKED,
    READ_IDS,
    TEACHER_IDS,
    TEACHER_LOGPROBS,
    VERDICTS,
    Arrays,
    PrefillHead,
    VerifyHead,
    WireForward,
    arrays_of,
)
from ..wire.packed_round import unpacked
from ..wire.request_forward import NO_FEATURES, NO_TOKENS, RequestForward, RequestPrefill, RequestVerify, TeacherWidth


def running_ids(forward: WireForward) -> list[str]:
    """Its requests, without those that had ended while it was under way: nothing of theirs is in it."""
    head = forward.head
    is_prefill = isinstance(head, PrefillHead)
    commits = zip(head.request_ids, head.commits, strict=True)
    return [request_id for request_id, commit in commits if is_prefill or commit.tokens or not commit.finish]


def ended_ids(forward: WireForward) -> list[str]:
    """Its requests of which no later forward has tokens."""
    head = forward.head
    return [request_id for request_id, commit in zip(head.request_ids, head.commits, strict=True) if commit.finish]


def split(forward: WireForward, teacher: TeacherWidth) -> list[RequestForward]:
    """One share per captured request of its batch, in the head's order; any exception when the arrays do not fit it."""
    head = forward.head
    arrays: Arrays = arrays_of(forward)
    if isinstance(head, VerifyHead):
        if PACKED in arrays:
            arrays = unpacked(arrays[PACKED], len(head.request_ids), head.packed_width, head.feature_dtype)
        return split_verify(head, arrays, teacher)
    return split_prefill(head, arrays)


def split_verify(head: VerifyHead, arrays: Arrays, teacher: TeacherWidth) -> list[RequestForward]:
    """Split a verify round. ValueError when there are not as many feature rows as tokens were committed."""
    verdicts = arrays[VERDICTS]
    width = verdicts.shape[1] - 2
    ends = np.cumsum(verdicts[:, -1]).tolist()
    features = _committed_features(arrays)
    if len(features) not in {0, ends[-1]}:
        raise ValueError(f"features of a verify round: got {len(features)} rows, expected {ends[-1]}")
    teachers = _teachers(head, arrays, teacher, width)
    logprobs = arrays.get(COMMITTED_LOGPROBS)
    shares: list[RequestForward] = []
    for i, (row, commit, end) in enumerate(zip(verdicts.tolist(), head.commits, ends, strict=True)):
        teacher_ids, teacher_logprobs = _on_path(verdicts[i, :width] >= 0, *teachers[i])
        share = RequestVerify(
            request_id=head.request_ids[i],
            draft_version=head.draft_version,
            target_version=head.target_version,
            root=row[width],
            root_token=row[0],
            drafted=verdicts[i, 1:width].astype(np.int32),
            accepted=row[-1] - 1,  # SGLang counts the bonus token
            teacher_ids=teacher_ids,
            teacher_logprobs=teacher_logprobs,
            features=features[end - row[-1] : end],
            feature_dtype=head.feature_dtype,
            commit=commit,
            is_tree=head.is_tree,
            tree=head.tree,
            committed_logprobs=None if logprobs is None or head.is_greedy[i] else logprobs[i],
        )
        shares.append(share)
    return shares


def _committed_features(arrays: Arrays) -> npt.NDArray[Any]:
    """Rows of root and accepted drafts, request by request; the others that came along are left out."""
    features = arrays.get(FEATURES, NO_FEATURES)
    committed_R1 = arrays[VERDICTS][:, -1:]
    if NODES not in arrays and len(features) in {0, committed_R1.sum()}:
        return features
    depth = len(features) // len(committed_R1)
    nodes_RD = arrays.get(NODES, np.arange(len(committed_R1) * depth).reshape(-1, depth))
    return features[nodes_RD[np.arange(nodes_RD.shape[1]) < committed_R1]]


def _on_path(is_node_N: npt.NDArray[np.bool_], ids_NK: Int32s, logprobs_NK: Float16s) -> tuple[Int32s, Float16s]:
    """The teacher, without what stands after the end of a tree's path: that is not of this path."""
    if is_node_N.all():
        return ids_NK, logprobs_NK
    return ids_NK * is_node_N[:, None], np.where(is_node_N[:, None], logprobs_NK, np.float16(-np.inf))


def split_prefill(head: PrefillHead, arrays: Arrays) -> list[RequestForward]:
    """Split a prefill."""
    ids = arrays[READ_IDS]
    features = arrays.get(FEATURES, NO_FEATURES)
    prefixes = [np.frombuffer(prefix, np.int32) for prefix in head.prefixes] or [NO_TOKENS] * len(head.request_ids)
    rows = zip(head.request_ids, head.facts, head.spans, head.commits, prefixes, strict=True)
    return [
        RequestPrefill(
            request_id=request_id,
            draft_version=head.draft_version,
            target_version=head.target_version,
            facts=facts,
            start=start,
            ids=ids[begin:end],
            features=features[begin:end],
            feature_dtype=head.feature_dtype,
            commit=commit,
            prefix=prefix,
        )
        for request_id, facts, (start, begin, end), commit, prefix in rows
    ]


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


def _teachers(head: VerifyHead, arrays: Arrays, teacher: TeacherWidth, width: int) -> list[tuple[Int32s, Float16s]]:
    """Per request; without an accelerator, whole logits come and the teacher is found here."""
    if BEST_IDS in arrays:
        ids_RNK = arrays[BEST_IDS][..., None].astype(np.int32)
        logprobs_RNK = np.zeros(ids_RNK.shape, np.float16)
    elif LOGITS in arrays:
        ids_RNK, logprobs_RNK = top_logprobs(arrays[LOGITS], max(teacher.sampled, teacher.greedy))
    elif TEACHER_IDS in arrays:
        ids_RNK = arrays[TEACHER_IDS]
        logprobs_RNK = arrays[TEACHER_LOGPROBS]
    else:
        ids_RNK = np.zeros((len(head.request_ids), width, 0), np.int32)
        logprobs_RNK = np.zeros(ids_RNK.shape, np.float16)
    return [
        _narrowed(ids_NK, logprobs_NK, teacher.of(is_greedy), is_greedy)
        for ids_NK, logprobs_NK, is_greedy in zip(ids_RNK, logprobs_RNK, head.is_greedy, strict=True)
    ]


def _narrowed(ids_NK: Int32s, logprobs_NK: Float16s, top_k: int, is_greedy: bool) -> tuple[Int32s, Float16s]:
    if is_greedy and top_k == 1:  # what verified it: all of the mass on the best token
        logprobs_NK = np.zeros_like(logprobs_NK)
    return ids_NK[:, :top_k], logprobs_NK[:, :top_k]
