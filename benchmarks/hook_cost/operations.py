"""Counts what the hooks ask of a GPU, on a machine without one.

A round's tensors are pretended to be there and hold nothing. Of a prefill they are real ones of the CPU: it is captured
by the same operations everywhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...serving.capture import round_kernel
from .forwards import Shape, batch_of, capture_of, hooks_of


@dataclass(slots=True)
class Operations:
    """What one forward asks of the device; views cost nothing there and are left out."""

    launches: int = 0  # kernels, copies within the device among them
    allocations: int = 0
    copies: int = 0  # to the host
    names: tuple[str, ...] = ()  # of what is launched


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, found: Operations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name.startswith("aten::empty"):
            self._found.allocations += 1
        elif name.startswith("aten::") and not func.is_view:
            self._found.launches += 1
            self._found.allocations += 1
            self._found.names += (name.removeprefix("aten::"),)
        return func(*args, **(kwargs or {}))


def operations(shape: Shape, *, is_captured: bool = True) -> Operations:
    """What the hooks of one forward ask of a GPU; exact. RuntimeError when they met a fault."""
    found = Operations()
    device = "cpu" if shape.is_prefill else "cuda"
    with nullcontext() if shape.is_prefill else FakeTensorMode(), _kernel_counted(found):
        capture = capture_of(shape, mock.Mock())
        hooks = hooks_of(capture, shape, batch_of(shape, device, is_captured=is_captured), device)
        with _Counting(found):
            attached = hooks()
        if attached is not None:
            attached.copy_to_host(lambda tensor: _copied(tensor, found))
    if is_captured != (attached is not None):
        raise RuntimeError(f"hooks of {shape}: got {attached}, expected a forward where one is captured")
    return found


def _copied(tensor: torch.Tensor, found: Operations) -> torch.Tensor:
    found.copies += 1
    return tensor


@contextmanager
def _kernel_counted(found: Operations) -> Iterator[None]:
    """Triton launches nothing without a GPU: its one launch per call is counted where it would be made."""

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return self.launch

        def launch(self, *_: Any, **__: Any) -> None:
            found.launches += 1
            found.names += ("pack_round",)

    with mock.patch.object(round_kernel, "_pack", Kernel()):
        yield
