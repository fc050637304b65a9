"""The shapes of the target's tensors, as its checkpoint says them: SGLang ends when it is sent others.

It loads tensors into the weights in use one after the other, and an assertion about a shape ends its scheduler; from a
folder it then reads the same file once more, "rolling back", and ends too.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from ...buffer.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]


def checkpoint_shapes(model_path: str | None) -> dict[str, tuple[int, ...]]:
    """Name -> shape in a checkpoint; empty where it is no folder of safetensors that this process can read."""
    found: dict[str, tuple[int, ...]] = {}
    try:
        files = sorted(Path(model_path).glob("*.safetensors")) if model_path else []
        for path in files:
            with safe_open(path, framework="numpy") as file:
                found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return {}
    return found


def checked(named: "Iterable[tuple[str, Tensor]]", shapes: Shapes) -> "Iterator[tuple[str, Tensor]]":
    """`named`, whose tensors have the shapes that are known of them; ConfigError at one that has not.

    What can be gone through twice is looked at whole before the first tensor is yielded. Names that the checkpoint has
    not, such as a head that is tied there, pass.
    """
    if not isinstance(named, Iterator):
        for name, tensor in named:
            _refuse_unfit(name, tensor, shapes)
    for name, tensor in named:
        _refuse_unfit(name, tensor, shapes)
        yield name, tensor


def _refuse_unfit(name: str, tensor: "Tensor", shapes: Shapes) -> None:
    got = tuple(tensor.shape)
    expected = shapes.get(name)
    if not tensor.numel():
        raise ConfigError(
            f"weights: got {name} of shape {got}, expected the whole tensor; gather what a trainer has split over its "
            "processes before pushing it"
        )
    if expected is not None and got != expected:
        raise ConfigError(f"weights: got {name} of shape {got}, expected {expected}, as in the target's checkpoint")
