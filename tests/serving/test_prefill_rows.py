"""Of a prefill only what a trace window will keep leaves the device, whatever chunks and batches it comes in."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.serving.breaker import Breaker
from paceline.serving.capture.prefill_rows import WindowSizes, kept_rows
from paceline.serving.capture.request_choice import RequestChoice
from paceline.serving.capture.sglang_capture import CaptureSettings, SglangCapture
from paceline.serving.wire.counts import CaptureCounts
from paceline.serving.wire.messages import FEATURES, READ_IDS
from paceline.serving.wire.request_forward import TeacherWidth
from sglang_double import batch_of, request

SIZES = WindowSizes(trace_tokens=16, context_tokens=4)


def kept_positions(prompt, cached, chunk, output=0):
    """Positions kept over all chunks of one request's prefill, with what SGLang says of each chunk."""
    found, total = [], prompt + output
    for start in range(cached, total, chunk):
        count = min(chunk, total - start)
        reqs = [request("other", prompt=range(3)), request("a", prompt=range(prompt), output=range(output))]
        batch = batch_of(reqs, extend_lens=[3, count], prefix_lens=[0, start])
        for one in kept_rows(batch, [1], SIZES):
            assert (one.row, one.end) == (1, 3 + count)
            assert one.begin - 3 == one.start - start
            found += range(one.start, one.start + one.end - one.begin)
    return found


@given(prompt=st.integers(1, 60), output=st.integers(0, 20), cached_share=st.floats(0, 0.99), chunk=st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_a_window_gets_a_short_prompt_whole_and_the_end_of_a_long_one(prompt, output, cached_share, chunk):
    total = prompt + output
    cached = int(cached_share * total)
    # The window also holds the token that the prefill commits.
    first = 0 if total + 1 <= 16 else total + 1 - 4
    assert kept_positions(prompt, cached, chunk, output) == list(range(max(first, cached), total))


def test_an_8k_prompt_hands_on_a_sixteenth_of_what_it_did():
    sizes, handed_on = WindowSizes(2048, 512), 0
    for start in range(0, 8192, 2048):
        batch = batch_of([request("a", prompt=range(8192))], extend_lens=[2048], prefix_lens=[start])
        handed_on += sum(one.end - one.begin for one in kept_rows(batch, [0], sizes))
    assert handed_on == 511  # with the first generated token 512, the context of a window
    assert handed_on * 16 <= 8192


@pytest.fixture
def capture():
    wide = CaptureSettings(TeacherWidth(4, 1), features=True, sizes=SIZES)
    return SglangCapture(wide, None, RequestChoice(1.0, CaptureCounts(), lambda: 3, lambda: "7"), Breaker())


def test_the_arrays_hold_the_kept_rows_of_captured_requests_alone_and_the_head_says_where(capture):
    prompts = {"short": 5, "out": 6, "long": 20, "early": 40}
    lengths, starts = [5, 6, 8, 8], [0, 0, 12, 8]  # the last chunk of `long`, a middle one of `early`
    opted_out = {"out": {"paceline_opt_out": True}}
    reqs = [request(n, prompt=range(count), custom_params=opted_out.get(n)) for n, count in prompts.items()]
    ids = torch.arange(sum(lengths)) + 100
    hidden = torch.arange(sum(lengths) * 2.0).view(-1, 2)
    capture._before_draft_prefill(None, batch_of(reqs, extend_lens=lengths, prefix_lens=starts, input_ids=ids), hidden)
    forward = capture._prefill
    rows = [*range(5), *range(5 + 6 + 8 - 3, 5 + 6 + 8)]  # of `long`, the last three: with its first token a context
    assert forward.tensors[READ_IDS].tolist() == [100 + row for row in rows]
    assert forward.tensors[READ_IDS].dtype == torch.int32
    np.testing.assert_array_equal(forward.tensors[FEATURES], hidden[rows])
    head = forward.head(((0, 0, ""),) * 2)
    assert head.request_ids == forward.chosen.request_ids == ("short", "long")
    assert head.spans == ((0, 0, 5), (17, 5, 8))
    assert forward.chosen.rows == (0, 2)
    assert not any(forward.tensors[FEATURES].data_ptr() == each.data_ptr() for each in itertools.chain([hidden]))


def test_a_prefill_of_which_nothing_is_kept_hands_on_nothing(capture):
    batch = batch_of([request("a", prompt=range(40))], extend_lens=[8], prefix_lens=[8], input_ids=torch.arange(8))
    capture._before_draft_prefill(None, batch, torch.zeros(8, 2))
    assert (capture._prefill, capture._breaker.faults) == (None, 0)
