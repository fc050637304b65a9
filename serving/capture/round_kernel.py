"""A verify round on a GPU: one kernel writes all that is captured of it into one buffer, which takes one copy to host.

R captured requests of a batch, W nodes each (the root and its drafts), D features, V tokens. Every other kind of round,
and a machine without a GPU, has what sglang_capture.py makes of plain operations of torch: the same arrays.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..wire.packed_round import features_at, packed_words

#: Logits, and words of features, that a program reads at a time.
BLOCK = 4096


def pack_round(
    result: Any,
    verify_input: Any,
    *,
    seq_lens: Tensor,
    logits: Tensor,
    features: Tensor | None,
    rows: Tensor | None,
    is_quantised: bool = False,
) -> Tensor:
    """A fresh buffer (wire/packed_round.py) of a round of chains, on the device of `logits` [B * W, V]; never waits.

    `result` is what eagle_sample returned for `verify_input`, `rows` [R] the captured requests of the batch, None for
    all. Of the features [B * W, D] those of committed nodes are in it, as scaled_rows.py has them if `is_quantised`;
    the buffer has room for all.
    """
    _, accept_lens, accept_index = result
    width = verify_input.draft_token_num
    requests = len(accept_lens) if rows is None else len(rows)
    row_words = 0
    if features is not None:
        row_words = 1 + features.shape[-1] // 4 if is_quantised else features.shape[-1] * features.itemsize // 4
    buffer = torch.empty(packed_words(requests, width, row_words), dtype=torch.int32, device=logits.device)
    _pack[(requests, width)](
        buffer,
        verify_input.draft_token,
        seq_lens,
        accept_lens,
        accept_index,
        logits,
        buffer if features is None else features if is_quantised else features.view(torch.int32),
        buffer.view(torch.int8),
        seq_lens if rows is None else rows,
        rows is not None,
        accept_index.shape[1],
        logits.shape[-1],
        logits.stride(0),
        row_words,
        features_at(requests, width),
        IS_QUANTISED=is_quantised,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return buffer


def fits(verify_input: Any, logits: Tensor, features: Tensor | None, *, is_quantised: bool = False) -> bool:
    """Whether a round is one that the kernel knows: chains, and rows whose features are sent as whole words."""
    value_bytes = 1 if is_quantised or features is None else features.itemsize
    is_whole = features is None or (features.is_contiguous() and features.shape[-1] * value_bytes % 4 == 0)
    return verify_input.tree_topk == 1 and logits.stride(-1) == 1 and is_whole


# One kernel for every batch, whatever is captured of it: to compile another takes a second, in the scheduler's thread.
# SGLang's request that warms a server up has this one compiled.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["has_rows", "depth", "vocab", "logits_stride", "row_words", "features_begin"],
    do_not_specialize_on_alignment=["draft_token", "seq_lens", "accept_lens", "accept_index", "rows"],
)
def _pack(  # type: ignore[no-untyped-def]  # Triton reads annotations as types of its own
    buffer,
    draft_token,
    seq_lens,
    accept_lens,
    accept_index,
    logits,
    features,
    codes,
    rows,
    has_rows,
    depth,
    vocab,
    logits_stride,
    row_words,
    features_begin,
    IS_QUANTISED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per captured request and node. `codes` is the buffer by bytes."""
    at = tl.program_id(0)
    node = tl.program_id(1)
    requests = tl.num_programs(0)
    width = tl.num_programs(1)
    row = at.to(tl.int64)
    if has_rows:
        row = tl.load(rows + at).to(tl.int64)
    verdict = buffer + at * (width + 2)
    tl.store(verdict + node, tl.load(draft_token + row * width + node).to(tl.int32))
    if node == 0:
        tl.store(verdict + width, tl.load(seq_lens + row).to(tl.int32))
        tl.store(verdict + width + 1, tl.load(accept_lens + row).to(tl.int32))
    best_id = _best_token(logits + (row * width + node) * logits_stride, vocab, BLOCK=BLOCK)
    tl.store(buffer + requests * (width + 2) + at * width + node, best_id)
    # Committed rows alone, one after another: before these are those of the requests before.
    lane = tl.arange(0, BLOCK)
    before = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, at, BLOCK):
        is_before = begin + lane < at
        other = (begin + lane).to(tl.int64)
        if has_rows:
            other = tl.load(rows + begin + lane, mask=is_before, other=0).to(tl.int64)
        before += tl.load(accept_lens + other, mask=is_before, other=0).to(tl.int32)
    out_at = features_begin + (tl.sum(before, axis=0) + node).to(tl.int64) * row_words
    source = tl.load(accept_index + row * depth + node, mask=node < depth, other=0)
    source = tl.where(source < 0, 0, source).to(tl.int64)
    own_words = tl.where(node < tl.load(accept_lens + row), row_words, 0)
    if IS_QUANTISED:
        values = features + source * (row_words - 1) * 4
        _quantise(values, own_words, buffer + out_at, codes + (out_at + 1) * 4, BLOCK=BLOCK)
    else:
        for begin in range(0, own_words, BLOCK):
            word = begin + lane
            is_word = word < own_words
            source_word = tl.load(features + source * row_words + word, mask=is_word)
            tl.store(buffer + out_at + word, source_word, mask=is_word)


@triton.jit  # type: ignore[untyped-decorator]
def _best_token(logit, vocab, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The lowest of equal ones, as torch.argmax has it, by which SGLang verified: lane by lane, then over the lanes."""
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_id = lane
    for begin in range(0, vocab, BLOCK):
        ids = begin + lane
        value = tl.load(logit + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
        best_id = tl.where(value > best, ids, best_id)
        best = tl.where(value > best, value, best)
    return tl.min(tl.where(best == tl.max(best, axis=0), best_id, vocab), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _quantise(values, words, scale_out, codes_out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One row as scaled_rows() has it, which takes `words` of the buffer; nothing where that is none."""
    lane = tl.arange(0, BLOCK)
    count = tl.where(words > 0, (words - 1) * 4, 0)
    largest = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, count, BLOCK):
        size = tl.abs(tl.load(values + begin + lane, mask=begin + lane < count, other=0.0).to(tl.float32))
        # Infinite where a value is not finite, since no comparison would keep a NaN.
        largest = tl.maximum(largest, tl.where(size < float("inf"), size, float("inf")))
    scale = tl.div_rn(tl.max(largest, axis=0), 127.0)
    unit = tl.where(scale > 0.0, scale, float("inf"))
    tl.store(scale_out, scale.to(tl.int32, bitcast=True), mask=words > 0)
    for begin in range(0, count, BLOCK):
        is_value = begin + lane < count
        code = tl.div_rn(tl.load(values + begin + lane, mask=is_value, other=0.0).to(tl.float32), unit)
        # Once 1.5 * 2 ** 23 is added, a float32 has no bits below one: rounded to the nearest, ties to even.
        code = tl.minimum(tl.maximum((code + 12582912.0) - 12582912.0, -127.0), 127.0)
        tl.store(codes_out + begin + lane, code.to(tl.int8), mask=is_value)
