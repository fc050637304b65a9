"""torch.optim.Muon where a processor has no instructions for bfloat16, in which torch computes its step."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Muon):
    """As torch's with `match_rms_adamw`, Nesterov's momentum and no weight decay; on a CPU its step is in float32.

    Torch orthogonalises in bfloat16, which takes twenty times as long on an x86 processor without AVX512-BF16 or AMX.
    State and its names are torch's.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step along the gradients; weights without one stay. On a GPU it is torch's own."""
        if any(weight.is_cuda for group in self.param_groups for weight in group["params"]):
            return super().step(closure)  # type: ignore[no-untyped-call]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)
        return None

    def _move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum = state["momentum_buffer"].lerp_(gradient, 1.0 - group["momentum"])
        update = orthogonal(gradient.lerp(momentum, group["momentum"]), group)
        weight.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(weight.shape)))


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
