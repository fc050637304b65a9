"""How the weights of a draft move: matrices between hidden states by Muon, all others by AdamW."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..model.draft import Draft
from .muon import Muon


class DraftOptimiser:
    """Muon (arXiv:2502.16982) for `fc` and the matrices of the decoder layer, AdamW for the others.

    Muon's step has the size that AdamW's has at the same rate (`match_rms_adamw`), so both follow one learning rate;
    `matrix_rate` is Muon's over AdamW's, and at 0 AdamW moves everything.
    """

    def __init__(self, draft: Draft, matrix_rate: float, *, low_precision: bool = False) -> None:
        """With `low_precision` Muon computes in bfloat16, else in float32."""
        self._matrix_rate = matrix_rate
        self._parameters = [weight for weight in draft.parameters() if weight.requires_grad]
        matrices = hidden_matrices(draft) if matrix_rate else []
        by_muon = {id(matrix) for matrix in matrices}
        others = [weight for weight in self._parameters if id(weight) not in by_muon]
        self._adam = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self._muon: Muon | None = None
        if matrices:
            self._muon = Muon(
                matrices, low_precision=low_precision, lr=0.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
            )

    def step(self, learning_rate: float) -> None:
        """Move every weight along its gradient once, at AdamW's `learning_rate`."""
        _step(self._adam, learning_rate)
        if self._muon is not None:
            _step(self._muon, learning_rate * self._matrix_rate)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for weight in self._parameters:
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Moments and momenta; `load_state_dict` continues from them."""
        return {"adam": self._adam.state_dict(), "muon": self._muon.state_dict() if self._muon else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state_dict` of an optimiser of the same draft, and return True.

        False, and no change, when that one moved other weights by Muon: with another `matrix_rate`, 0 or not.
        """
        if (state["muon"] is None) != (self._muon is None):
            return False
        self._adam.load_state_dict(state["adam"])
        if self._muon is not None:
            self._muon.load_state_dict(state["muon"])
        return True


def hidden_matrices(draft: Draft) -> list[nn.Parameter]:
    """Weights that map hidden states to hidden states: two dimensions, and not the head over the vocabulary.

    Matrices of experts that are one parameter are none: AdamW moves those.
    """
    learned = ((name, weight) for name, weight in draft.named_parameters() if weight.requires_grad)
    return [weight for name, weight in learned if weight.dim() == 2 and "lm_head" not in name]


def _step(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
    optimiser.step()
