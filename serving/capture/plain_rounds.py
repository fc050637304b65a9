"""Decode steps that ride in a prefill, which SGLang runs with `--enable-mixed-chunk`: rounds without drafts.

SGLang appends running requests to a prefill as parts of one token: the target reads the last token of each and commits
the next, and no draft is verified. That is what a verify round without drafts does, so it is sent as one. Its teacher
is left out: by the time a hook sees the logits, SGLang's sampler may have put probabilities in their place.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..wire.messages import FEATURES, VERDICTS
from .device_output import row_index


def decoding_rows(batch: Any) -> frozenset[int]:
    """Rows of a prefill batch whose requests run already: each of them is one decode step."""
    decoding = {id(req) for req in batch.decoding_reqs or ()}
    return frozenset(row for row, req in enumerate(batch.reqs or ()) if id(req) in decoding)


def plain_rounds(batch: Any, rows: Sequence[int], hidden: Tensor | None) -> dict[str, Tensor]:
    """Fresh tensors of the decode steps in `rows`, as of a verify round of width 1; never asks the device for a value.

    `hidden` has a row per token of the batch, None where features are not captured. With SGLang's overlap schedule the
    requests' own lengths are one step late, and those of the batch are right: there the last token read counts already.
    """
    ends = list(accumulate(batch.extend_lens))
    device = torch.device(batch.device)
    at_R = row_index([int(ends[row]) - 1 for row in rows], device)
    roots_R = batch.input_ids.index_select(0, at_R).long()
    positions_R = batch.seq_lens.index_select(0, row_index(rows, device)).long() - 1
    tensors = {VERDICTS: torch.stack([roots_R, positions_R, torch.ones_like(roots_R)], dim=1)}
    return tensors if hidden is None else tensors | {FEATURES: hidden.index_select(0, at_R)}
