"""Which rows of a prefill a trace window will keep: the others need not leave the device.

A window holds a prompt whole, or the last part of it as context where it would be longer than a window.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """Tokens of a trace window, and of the context at the start of one whose request is older."""

    trace_tokens: int
    context_tokens: int

    def first_kept(self, prompt_tokens: int) -> int:
        """Position of the first prompt token that is kept; the last one always is, to be the first root's feature."""
        if prompt_tokens < self.trace_tokens:  # with the token that the prefill commits, at most a window
            return 0
        return min(prompt_tokens + 1 - self.context_tokens, prompt_tokens - 1)


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """What is kept of one request's part of a prefill."""

    row: int  # of the request in the batch
    start: int  # position in the request of the first token kept
    begin: int  # its place among all tokens of the prefill
    end: int


def kept_rows(batch: Any, rows: Sequence[int], sizes: WindowSizes) -> Iterator[PrefillRows]:
    """What is kept of the requests in `rows`; nothing for one whose part ends before what is kept of its prompt.

    After a retraction the tokens that were generated before are prefilled with the prompt, and count as part of it.
    """
    ends = list(accumulate(batch.extend_lens))
    for row in rows:
        req = batch.reqs[row]
        count = int(batch.extend_lens[row])
        start = int(batch.prefix_lens[row])
        cut = max(sizes.first_kept(len(req.origin_input_ids) + len(req.output_ids)) - start, 0)
        if cut < count:
            yield PrefillRows(row, start + cut, int(ends[row]) - count + cut, int(ends[row]))


def ends_first_prefill(batch: Any, row: int) -> bool:
    """Whether a request's prompt is read to its end for the first time: once per request, whatever chunks it comes in.

    Not so for one that is prefilled again after a retraction, unless it had generated nothing.
    """
    req = batch.reqs[row]
    end = int(batch.prefix_lens[row]) + int(batch.extend_lens[row])
    return not req.output_ids and end >= len(req.origin_input_ids)


def gathered(tensor: Tensor, kept: Sequence[PrefillRows]) -> Tensor:
    """A fresh tensor of the kept rows, one request after the other. The device is asked for nothing."""
    return torch.cat([tensor[one.begin : one.end] for one in kept])
