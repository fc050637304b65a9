"""torch.optim.Muon, by several ranks together, and in float32 where bfloat16 would take twenty times as long."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .rank_group import RankGroup, joined


class Muon(torch.optim.Muon):
    """As torch's with `match_rms_adamw`, Nesterov's momentum and no weight decay. State and its names are torch's."""

    def __init__(self, params: Iterable[nn.Parameter], *, low_precision: bool = False, **torchs: Any) -> None:
        """With `low_precision` a step is orthogonalised in bfloat16, as torch does, and else in float32."""
        super().__init__(params, **torchs)
        self._dtype = torch.bfloat16 if low_precision else torch.float32

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ARG002 - torch's has it, nobody gives it
        """One step along the gradients; weights without one stay. Each of several ranks orthogonalises a share."""
        moved = [
            (weight, weight.grad, group)
            for group in self.param_groups
            for weight in group["params"]
            if weight.grad is not None
        ]
        moved.sort(key=lambda each: -each[0].numel())  # the matrices of one turn take about as long as each other
        ranks = joined()
        world = ranks.world if ranks else 1
        for begin in range(0, len(moved), world):
            self._move(moved[begin : begin + world], ranks)

    def _move(self, turn: Sequence[tuple[Tensor, Tensor, dict[str, Any]]], ranks: RankGroup | None) -> None:
        """Move a weight for each rank."""
        directions = [self._direction(weight, gradient, group) for weight, gradient, group in turn]
        own = ranks.rank if ranks else 0
        if own < len(turn):
            found = orthogonal(directions[own].to(self._dtype), turn[own][2])
            directions[own].copy_(found)
        if ranks:
            ranks.exchange(directions)
        for (weight, _, group), direction in zip(turn, directions, strict=True):
            weight.add_(direction, alpha=-group["lr"] * 0.2 * math.sqrt(max(weight.shape)))

    def _direction(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum = state["momentum_buffer"].lerp_(gradient, 1.0 - group["momentum"])
        return gradient.lerp(momentum, group["momentum"])


def orthogonal(matrix: Tensor, group: dict[str, Any]) -> Tensor:
    """A matrix of nearly the same singular vectors whose singular values are near 1, by Newton and Schulz's iteration.

    The polynomial of https://kellerjordan.github.io/posts/muon/, with its coefficients, steps and eps in `group`.
    """
    a, b, c = group["ns_coefficients"]
    rows, columns = matrix.shape
    found = matrix.T if rows > columns else matrix
    found = found / found.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if rows > columns else found
