"""One forward's captured tensors on their way to the host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import torch

from ...buffer.stream.trace import FeatureDtype
from ..wire.messages import FEATURES, PACKED, PrefillHead, VerifyHead, WireForward, to_wire
from ..wire.packed_round import committed_part
from ..wire.request_forward import Commit

FEATURE_DTYPES = {
    torch.float32: FeatureDtype.FLOAT32,
    torch.float16: FeatureDtype.FLOAT16,
    torch.bfloat16: FeatureDtype.BFLOAT16,
    torch.int8: FeatureDtype.INT8,
}

#: What became visible, and the dtype of the features -> the head of the message.
MakeHead = Callable[[tuple[Commit, ...], FeatureDtype], VerifyHead | PrefillHead]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The captured requests of one batch, fixed when the forward was launched."""

    rows: tuple[int, ...]
    request_ids: tuple[str, ...]
    is_greedy: tuple[bool, ...]
    draft_version: int
    target_version: str  # empty: the target was being loaded
    is_prefill: bool = False
    row_index: torch.Tensor | None = field(default=None, compare=False, repr=False)  # `rows` on the device

    def only(self, rows: Sequence[int]) -> "Chosen":
        """These of its rows, in their order; without a row index."""
        kept = [i for i, row in enumerate(self.rows) if row in rows]
        ids = tuple(self.request_ids[i] for i in kept)
        greedy = tuple(self.is_greedy[i] for i in kept)
        return Chosen(
            rows=tuple(rows),
            request_ids=ids,
            is_greedy=greedy,
            draft_version=self.draft_version,
            target_version=self.target_version,
            is_prefill=self.is_prefill,
        )


def row_index(rows: Sequence[int], device: torch.device | str) -> torch.Tensor:
    """`rows` as int64 on `device`, without waiting for it.

    Copied from pageable memory it would wait for all work that is queued there: the whole verification.
    """
    if torch.device(device).type != "cuda":
        return torch.tensor(rows, device=device)
    return torch.tensor(rows, pin_memory=True).to(device, non_blocking=True)


class LostForward:
    """HostAuxiliaryOutput of a forward that did not reach the host."""

    def consume(self, _batch: Any, _commits: Sequence[Any]) -> None:
        """Nothing is left to do: its requests were marked as lost when the copy failed."""


@dataclass(frozen=True, slots=True)
class UncapturedForward:
    """As ForwardOutput, of a forward that is attached for its commits alone. `on_consume` must not raise."""

    chosen: Chosen
    on_consume: Callable[[Chosen, Any, Sequence[Any]], None]

    def copy_to_host(self, _copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> "UncapturedForward":
        """There is nothing to copy."""
        return self

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """Called by SGLang in the scheduler thread."""
        self.on_consume(self.chosen, batch, commits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOutput:
    """One forward: SGLang's DeviceAuxiliaryOutput, and once its tensors are on the host its HostAuxiliaryOutput.

    The tensors alias no static buffer: every one was made for this forward. `on_consume` and `on_copy_failed` must not
    raise.
    """

    chosen: Chosen
    tensors: dict[str, torch.Tensor]
    make_head: MakeHead
    on_consume: Callable[["ForwardOutput", Any, Sequence[Any]], None]
    on_copy_failed: Callable[[Chosen, Exception], None]
    prefix_bytes: int = 0  # of the prefixes in the head

    def copy_to_host(self, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> "ForwardOutput | LostForward":
        """Called by SGLang on its copy stream; a failed copy, out of pinned memory say, costs this forward alone."""
        try:
            return self._with({name: copy_tensor(tensor) for name, tensor in self.tensors.items()})
        except Exception as fault:  # noqa: BLE001 - an exception here would kill SGLang's scheduler
            self.on_copy_failed(self.chosen, fault)
            return LostForward()

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """Called by SGLang in the scheduler thread."""
        self.on_consume(self, batch, commits)

    def _with(self, tensors: dict[str, torch.Tensor]) -> "ForwardOutput":
        """As dataclasses.replace, which takes ten times as long."""
        return ForwardOutput(
            chosen=self.chosen,
            tensors=tensors,
            make_head=self.make_head,
            on_consume=self.on_consume,
            on_copy_failed=self.on_copy_failed,
            prefix_bytes=self.prefix_bytes,
        )

    @property
    def size_bytes(self) -> int:
        """Of all tensors and prefixes; what the courier gets is no larger, but for the rest of the head."""
        return sum(tensor.nbytes for tensor in self.tensors.values()) + self.prefix_bytes

    def head(self, commits: tuple[Commit, ...]) -> VerifyHead | PrefillHead:
        """All but the arrays of what the courier gets."""
        features = self.tensors.get(FEATURES)
        return self.make_head(commits, FeatureDtype.FLOAT32 if features is None else FEATURE_DTYPES[features.dtype])

    def to_wire(self, commits: tuple[Commit, ...]) -> WireForward:
        """What the courier gets; bfloat16 as its bits. Views of the tensors, which must not change any more."""
        arrays: dict[str, npt.NDArray[Any]] = {
            name: (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
            for name, tensor in self.tensors.items()
        }
        head = self.head(commits)
        if PACKED in arrays and isinstance(head, VerifyHead):
            arrays[PACKED] = committed_part(arrays[PACKED], len(head.request_ids), head.packed_width)
        return to_wire(head, arrays)
