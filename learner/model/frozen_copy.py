"""Copies of a draft that take no gradient: one to compare with, one that follows the draft slowly."""

import copy

import torch

from .eagle3 import Eagle3Draft


def frozen(draft: Eagle3Draft) -> Eagle3Draft:
    """A copy of the draft's own weights that does not learn; embedding and vocabulary maps are shared."""
    shared = {id(buffer): buffer for buffer in draft.buffers()}
    return copy.deepcopy(draft, shared).requires_grad_(requires_grad=False)


@torch.no_grad()
def follow(average: Eagle3Draft, draft: Eagle3Draft, decay: float) -> None:
    """Make every weight of `average` decay * average + (1 - decay) * draft, in place."""
    for kept, new in zip(average.parameters(), draft.parameters(), strict=True):
        kept.lerp_(new, 1.0 - decay)
