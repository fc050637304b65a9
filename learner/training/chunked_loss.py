"""The loss of a batch without ever holding the logits of all its positions, forward or backward.

Axes as in batch.py; R rows of all traces (B times Q), N scored (row, step) pairs, H hidden size, V draft vocabulary.

A chunk's loss is differentiated as soon as it is known, so its logits are multiplied once and then gone; what stays
are the gradients of the hidden outputs and of the head. That needs chunks of whole rows, because under survival the
weight of a step is what the steps before it have reached.

Libraries that were looked at, and why none is used: Liger Kernel's fused linear cross-entropy and Apple's cut
cross-entropy give the cross-entropy to one label, in GPU kernels; the chunked divergences of torchtune and Liger take a
teacher with logits over the whole vocabulary, and ours is a request's top-K; linear_cross_entropy of torch 2.13 takes
one label a position where it works in chunks, else probabilities as wide as the logits. Objectives such as min(p, q)
need log q at K tokens of each position. Recomputing chunks under torch.utils.checkpoint would give the same gradients
for one more product with the vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..model.logits import logits_of

#: Of the head's gradient, what a chunk adds to it at once.
_HEAD_BYTES = 64 << 20


class Chunk(NamedTuple):
    """Neighbouring rows, and their scored positions."""

    rows: slice  # of R
    positions: slice  # of N


#: The share of a chunk in the loss of the batch, from its logits.
ChunkLoss = Callable[[Tensor, Chunk], Tensor]


def row_chunks(scored_RS: Tensor, most: int) -> list[Chunk]:
    """All rows in order, in chunks of at most `most` scored positions; a row with more is a chunk of its own."""
    chunks = list[Chunk]()
    row = 0
    position = 0
    held = 0
    counts = scored_RS.sum(1).tolist()
    for end, count in enumerate(counts):
        if held and held + count > most:
            chunks.append(Chunk(slice(row, end), slice(position, position + held)))
            row = end
            position = position + held
            held = 0
        held += count
    return [*chunks, Chunk(slice(row, len(counts)), slice(position, position + held))]


def summed_loss(hidden_NH: Tensor, weight_VH: Tensor, loss_of: ChunkLoss, chunks: Sequence[Chunk]) -> Tensor:
    """Sum of `loss_of` over `chunks`, which must cover all N positions; a scalar with gradient, once.

    `loss_of` is called once for each chunk, in order, and what else it depends on gets no gradient. Products are those
    of the autocast that this is called under.
    """
    loss: Tensor = _SummedLoss.apply(hidden_NH, weight_VH, loss_of, chunks)  # type: ignore[no-untyped-call]
    return loss


class _Gradients:
    """The gradients of hidden outputs and head, in the making."""

    def __init__(self, hidden_NH: Tensor, weight_VH: Tensor) -> None:
        self.hidden_NH = hidden_NH
        self.weight_VH = weight_VH
        self.of_hidden_NH = torch.empty_like(hidden_NH)
        self.of_weight_VH: Tensor | None = None

    def add(self, loss_of: ChunkLoss, chunk: Chunk) -> Tensor:
        """Add what a chunk contributes; return its loss. No logits of it are left."""
        hidden_PH = self.hidden_NH[chunk.positions]
        loss, gradient_PV = self._loss(hidden_PH, loss_of, chunk)
        self.of_hidden_NH[chunk.positions] = gradient_PV @ self.weight_VH
        # Not before: the logits that one chunk alone takes need not fit beside it.
        if self.of_weight_VH is None:
            self.of_weight_VH = torch.zeros_like(self.weight_VH)
        _add_outer(self.of_weight_VH, gradient_PV, hidden_PH)
        return loss

    def _loss(self, hidden_PH: Tensor, loss_of: ChunkLoss, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """The loss of a chunk and its gradient on the logits."""
        logits_PV = logits_of(hidden_PH, self.weight_VH).requires_grad_()
        with torch.enable_grad():
            loss = loss_of(logits_PV, chunk)
        return loss.detach(), torch.autograd.grad(loss, logits_PV)[0]


def _add_outer(sum_VH: Tensor, gradient_PV: Tensor, hidden_PH: Tensor) -> None:
    """Add what a chunk contributes to the head's gradient, some words at a time: the whole is as large as the head."""
    words = max(_HEAD_BYTES // (sum_VH.shape[1] * sum_VH.element_size()), 1)
    for begin in range(0, len(sum_VH), words):
        sum_VH[begin : begin + words].add_(gradient_PV[:, begin : begin + words].mT @ hidden_PH)


class _SummedLoss(torch.autograd.Function):
    """Its forward pass finds the gradients; the backward pass only scales them."""

    @staticmethod
    def forward(ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, loss_of: ChunkLoss, chunks: Sequence[Chunk]) -> Tensor:
        gradients = _Gradients(hidden_NH, weight_VH)
        losses = [gradients.add(loss_of, chunk) for chunk in chunks]
        ctx.gradients = gradients.of_hidden_NH, gradients.of_weight_VH
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        # In place, and forgotten: the head's gradient is as large as the head.
        (hidden_gradient, weight_gradient) = ctx.gradients
        ctx.gradients = None
        return hidden_gradient.mul_(upstream), weight_gradient.mul_(upstream), None, None
