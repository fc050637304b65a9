"""The product with the draft's vocabulary, the widest matrix of a draft: how many positions may meet it at once.

Axes: N positions, H hidden size, V draft vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

#: What the logits of one chunk may take while a loss is made of them. Few hundred rows of the largest vocabularies,
#: which still keep a GPU's matrix units busy, and little beside the weights of a draft that has such a vocabulary.
CHUNK_BYTES = 1 << 30
#: float32 numbers for every logit at the peak, most of them of the loss's backward pass.
_NUMBERS_PER_LOGIT = 4


def positions_per_chunk(vocabulary: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Positions whose logits, with what a loss keeps beside them, fit into `chunk_bytes`; at least one."""
    return max(chunk_bytes // (4 * _NUMBERS_PER_LOGIT * vocabulary), 1)


def positions_at_once(positions: int, head_shape: Sequence[int], chunk_bytes: int = CHUNK_BYTES) -> int:
    """Positions of a chunk when a loss is made of so many: all of them where chunks would take no less memory.

    `head_shape` is (vocabulary, hidden size). The first chunk makes the head's gradient, as large as the head, which
    the others find beside their logits; without chunks there are no logits any more when it is made.
    """
    vocabulary, hidden = head_shape
    most = positions_per_chunk(vocabulary, chunk_bytes)
    return positions if positions <= most + hidden // _NUMBERS_PER_LOGIT else most


def logits_of(hidden_NH: Tensor, weight_VH: Tensor) -> Tensor:
    """Logits [N, V], float32 even where autocast multiplies in bfloat16; float64 weights give float64."""
    product_NV = functional.linear(hidden_NH, weight_VH)
    return product_NV.to(torch.promote_types(product_NV.dtype, torch.float32))
