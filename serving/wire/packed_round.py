"""A verify round in one buffer: how the kernel of a GPU lays it out, and how the courier reads it.

R requests, W nodes each, C of all nodes committed, D features: int32 words, VERDICTS [R, W + 2], then BEST_IDS [R, W],
and, where a row of features has any words, FEATURES [C, D] from the word `features_at` on. The device knows C, so its
buffer has room for all nodes; what is sent has not. A quantised row is its scale, one word, and then its codes.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ...buffer.stream.trace import FeatureDtype
from .messages import BEST_IDS, FEATURES, VERDICTS, Arrays

#: What a GPU writes at a time, in words.
_ALIGNED = 4
_NUMPY: dict[FeatureDtype, type[np.generic]] = {
    FeatureDtype.FLOAT32: np.float32,
    FeatureDtype.FLOAT16: np.float16,
    FeatureDtype.BFLOAT16: np.uint16,
    FeatureDtype.INT8: np.int8,
}


def features_at(requests: int, width: int) -> int:
    """The word that the features begin at."""
    return -(-requests * (2 * width + 2) // _ALIGNED) * _ALIGNED


def packed_words(requests: int, width: int, row_words: int) -> int:
    """Words of a buffer whose rows of features have `row_words`."""
    return features_at(requests, width) + requests * width * row_words


def committed_part(words: npt.NDArray[np.int32], requests: int, width: int) -> npt.NDArray[np.int32]:
    """A buffer as the device had it, without the room that no committed node took: a view."""
    begin = features_at(requests, width)
    row_words = (len(words) - begin) // (requests * width)
    committed = int(words[width + 1 : requests * (width + 2) : width + 2].sum())
    return words[: begin + committed * row_words]


def unpacked(words: npt.NDArray[np.int32], requests: int, width: int, dtype: FeatureDtype) -> Arrays:
    """Views of a committed part by their names in a message; bfloat16 as its bits. ValueError when it is none."""
    best_at = requests * (width + 2)
    begin = features_at(requests, width)
    verdicts = words[:best_at].reshape(requests, width + 2)
    found: dict[str, npt.NDArray[Any]] = {
        VERDICTS: verdicts,
        BEST_IDS: words[best_at : best_at + requests * width].reshape(requests, width),
    }
    if len(words) > begin:
        found[FEATURES] = words[begin:].view(_NUMPY[dtype]).reshape(int(verdicts[:, -1].sum()), -1)
    return found
