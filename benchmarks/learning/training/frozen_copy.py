"""Copies of a draft: one that learns apart from it, and one that takes no gradient, to compare with."""

import copy

from ....learner.model.eagle3 import Eagle3Draft


def copied(draft: Eagle3Draft) -> Eagle3Draft:
    """A copy of the draft's own weights that can learn by itself; embedding and vocabulary maps are shared."""
    shared = {id(buffer): buffer for buffer in draft.buffers()}
    return copy.deepcopy(draft, shared)


def frozen(draft: Eagle3Draft) -> Eagle3Draft:
    """A copy as of `copied` that does not learn."""
    return copied(draft).requires_grad_(requires_grad=False)
