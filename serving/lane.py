"""One forward's captured tensors on their way to the host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..buffer.trace import FeatureDtype
from .letters import FEATURES, Arrays, PrefillHead, VerifyHead
from .steps import Commit

_FEATURE_DTYPES = {
    torch.float32: FeatureDtype.FLOAT32,
    torch.float16: FeatureDtype.FLOAT16,
    torch.bfloat16: FeatureDtype.BFLOAT16,
}

#: What became visible, and the dtype of the features -> the head of the letter.
MakeHead = Callable[[tuple[Commit, ...], FeatureDtype], VerifyHead | PrefillHead]


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
    make_head: MakeHead
    on_consume: Callable[["HostStep", Any, Sequence[Any]], None]

    def copy_to_host(self, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> "HostStep":
        """Called by SGLang on its copy stream."""
        host = {name: copy_tensor(tensor) for name, tensor in self.tensors.items()}
        return HostStep(self.chosen, host, self.make_head, self.on_consume)


@dataclass(frozen=True, slots=True)
class HostStep:
    """HostAuxiliaryOutput of one forward."""

    chosen: Chosen
    tensors: dict[str, torch.Tensor]
    make_head: MakeHead
    on_consume: Callable[["HostStep", Any, Sequence[Any]], None]

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """Called by SGLang in the scheduler thread; only sends."""
        self.on_consume(self, batch, commits)

    def letter(self, commits: tuple[Commit, ...]) -> tuple[VerifyHead | PrefillHead, Arrays]:
        """What the courier needs; the arrays are views of the tensors, bfloat16 as its bits."""
        features = self.tensors.get(FEATURES)
        dtype = FeatureDtype.FLOAT32 if features is None else _FEATURE_DTYPES[features.dtype]
        arrays = {
            name: (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
            for name, tensor in self.tensors.items()
        }
        return self.make_head(commits, dtype), arrays
