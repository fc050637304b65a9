"""One forward's captured tensors on their way to the host, and the knife that cuts them into steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..buffer.trace import FeatureDtype
from .steps import NO_FEATURES, Commit, PrefillStep, RequestFacts, Step, VerifyStep

_FEATURE_DTYPES = {
    torch.float32: FeatureDtype.FLOAT32,
    torch.float16: FeatureDtype.FLOAT16,
    torch.bfloat16: FeatureDtype.BFLOAT16,
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The captured requests of one batch, fixed when the step was launched."""

    rows: tuple[int, ...]
    request_ids: tuple[str, ...]
    draft_version: int


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """DeviceAuxiliaryOutput of one forward. Its tensors alias no static buffer: every one was made for it."""

    chosen: Chosen
    tensors: dict[str, torch.Tensor]
    cut: Callable[["HostStep", list[Commit]], list[Step]]
    on_consume: Callable[["HostStep", Any, Sequence[Any]], None]

    def copy_to_host(self, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> "HostStep":
        """Called by SGLang on its copy stream."""
        return HostStep(self.chosen, {k: copy_tensor(t) for k, t in self.tensors.items()}, self.cut, self.on_consume)


@dataclass(frozen=True, slots=True)
class HostStep:
    """HostAuxiliaryOutput of one forward."""

    chosen: Chosen
    tensors: dict[str, torch.Tensor]
    cut: Callable[["HostStep", list[Commit]], list[Step]]
    on_consume: Callable[["HostStep", Any, Sequence[Any]], None]

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """Called by SGLang in the scheduler thread; only enqueues."""
        self.on_consume(self, batch, commits)


@dataclass(frozen=True, slots=True)
class CommittedForward:
    """A forward whose tokens are committed: what waits in the tap."""

    host: HostStep
    commits: list[Commit]

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The captured requests of its batch."""
        return self.host.chosen.request_ids

    @property
    def size_bytes(self) -> int:
        """Memory of its tensors."""
        return sum(tensor.nbytes for tensor in self.host.tensors.values())

    def steps(self) -> list[Step]:
        """Cut it; see cut_verify and cut_prefill."""
        return self.host.cut(self.host, self.commits)


def teacher(logits: torch.Tensor, top_k: int) -> dict[str, torch.Tensor]:
    """Top-K log-probabilities of every verified node; logits [requests, width, V] -> two tensors [.., width, K]."""
    values, ids = torch.topk(logits, top_k, dim=-1)
    logprobs = values - torch.logsumexp(logits, dim=-1, keepdim=True)
    return {"teacher_ids": ids.to(torch.int32), "teacher_logprobs": logprobs.to(torch.float16)}


def cut_verify(step: HostStep, commits: list[Commit], top_k: int) -> list[Step]:
    """Cut the tensors of a verify round, one step per captured request.

    `ints` is [requests, width + 2]: root and drafts, position of the root, accepted drafts plus the bonus token. Where
    the engine has no device, whole `logits` come instead of a teacher: the courier's core judges them, not its own.
    """
    ints = step.tensors["ints"].numpy()
    judged = teacher(step.tensors["logits"], top_k) if "logits" in step.tensors else step.tensors
    width, count = ints.shape[1] - 2, len(commits)
    ids = _host_or(judged.get("teacher_ids"), np.zeros((count, width, 0), np.int32))
    logprobs = _host_or(judged.get("teacher_logprobs"), np.zeros((count, width, 0), np.float16))
    features, dtype = _features(step)
    depth = len(features) // count if len(features) else 0
    steps: list[Step] = []
    for i, (row, commit) in enumerate(zip(ints.tolist(), commits, strict=True)):
        accepted = row[width + 1] - 1  # SGLang counts the bonus token
        kept = features[i * depth : i * depth + min(accepted + 1, depth)]
        steps.append(
            VerifyStep(
                step.chosen.request_ids[i], step.chosen.draft_version, row[width], row[0],
                ints[i, 1:width], accepted, ids[i], logprobs[i], kept, dtype, commit,
            )
        )  # fmt: skip
    return steps


def cut_prefill(
    step: HostStep, commits: list[Commit], extents: list[tuple[int, int]], facts: list[RequestFacts]
) -> list[Step]:
    """Cut the tensors of a prefill; `extents` holds (cached prefix, tokens read) of every request of the batch."""
    ids = step.tensors["ids"].numpy()
    features, dtype = _features(step)
    ends = np.cumsum([extend for _, extend in extents]).tolist()
    steps: list[Step] = []
    for i, row in enumerate(step.chosen.rows):
        start, extend = extents[row]
        span = slice(ends[row] - extend, ends[row])
        steps.append(
            PrefillStep(
                step.chosen.request_ids[i], step.chosen.draft_version, facts[i], start,
                ids[span], features[span], dtype, commits[i],
            )
        )  # fmt: skip
    return steps


def _features(step: HostStep) -> tuple[Any, FeatureDtype]:
    tensor = step.tensors.get("features")
    if tensor is None:
        return NO_FEATURES, FeatureDtype.FLOAT32
    host = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return host, _FEATURE_DTYPES[tensor.dtype]


def _host_or(tensor: torch.Tensor | None, absent: Any) -> Any:
    return absent if tensor is None else tensor.numpy()
