"""A copy of a draft that takes no gradient, to compare with."""

import copy

from ....learner.model.eagle3 import Eagle3Draft


def frozen(draft: Eagle3Draft) -> Eagle3Draft:
    """A copy of the draft's own weights that does not learn; embedding and vocabulary maps are shared."""
    shared = {id(buffer): buffer for buffer in draft.buffers()}
    return copy.deepcopy(draft, shared).requires_grad_(requires_grad=False)
