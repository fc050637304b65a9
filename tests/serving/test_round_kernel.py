"""The kernel for a verify round against single operations of torch; without a GPU, by Triton's interpreter."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from paceline.buffer.stream.feature_rows import quantised
from paceline.buffer.stream.trace import FeatureDtype
from paceline.serving.breaker import Breaker
from paceline.serving.capture import sglang_capture
from paceline.serving.capture.device_output import FEATURE_DTYPES, Chosen, ForwardOutput
from paceline.serving.capture.prefill_rows import WindowSizes
from paceline.serving.capture.request_choice import RequestChoice
from paceline.serving.capture.round_kernel import fits
from paceline.serving.capture.scaled_rows import scaled_rows
from paceline.serving.capture.sglang_capture import CaptureSettings, SglangCapture
from paceline.serving.courier.split import split
from paceline.serving.wire.counts import CaptureCounts
from paceline.serving.wire.messages import BEST_IDS, FEATURES, PACKED, VERDICTS
from paceline.serving.wire.packed_round import committed_part, unpacked
from paceline.serving.wire.request_forward import Commit, TeacherWidth

WIDTH, DIM, BLOCK = 4, 6, 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def pack(*arguments):
    """The kernel's buffer; vocabulary and rows are read in several parts."""
    from paceline.serving.capture import round_kernel

    round_kernel.BLOCK = BLOCK
    names = ("seq_lens", "logits", "features", "rows", "is_quantised")
    return round_kernel.pack_round(*arguments[:2], **dict(zip(names, arguments[2:], strict=True)))


@pytest.fixture(scope="module")
def packing():
    """Where the kernel runs: a GPU, or a process that has loaded Triton as an interpreter."""
    if DEVICE == "cuda":
        yield pack
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")  # read when Triton is imported
            process.submit(os.getpid).result()
        yield lambda *arguments: process.submit(pack, *arguments).result()


def random_round(batch_size, vocab, dtype, seed, dim=DIM):
    """What SGLang hands to the hook after a chain of three drafts: result, verify_input, batch, logits_output."""
    draw = np.random.default_rng(seed)
    lens = draw.integers(1, WIDTH + 1, batch_size)
    first = WIDTH * np.arange(batch_size)[:, None]
    index = np.where(np.arange(WIDTH) < lens[:, None], first + np.arange(WIDTH), -1)
    nodes = batch_size * WIDTH
    # Few values, as bfloat16 has them, so that many are equal: the lowest of the best is the target's choice.
    logits = torch.from_numpy(draw.integers(0, 5, (nodes, vocab)).astype(np.float32))
    verify_input = SimpleNamespace(
        draft_token_num=WIDTH,
        tree_topk=1,
        draft_probs=None,
        draft_token=torch.from_numpy(draw.integers(0, vocab, nodes)),
    )
    result = (None, torch.from_numpy(lens).int(), torch.from_numpy(index).int())
    batch = SimpleNamespace(seq_lens=torch.from_numpy(draw.integers(1, 9000, batch_size)))
    hidden = torch.from_numpy(draw.normal(size=(nodes, dim)).astype(np.float32)).to(dtype)
    return result, verify_input, batch, SimpleNamespace(next_token_logits=logits, hidden_states=hidden)


def by_operations(chosen, features, answered):
    """The same round as any machine without a GPU has it."""
    settings = CaptureSettings(TeacherWidth(4, 1), features=features, sizes=WindowSizes(2048, 512))
    capture = SglangCapture(settings, None, RequestChoice(1.0, CaptureCounts(), int, str), Breaker())
    return capture._verified(
        chosen, answered[0], **dict(zip(("verify_input", "batch", "logits_output"), answered[1:], strict=True))
    )


def shares(output, requests):
    """What the courier makes of it, as plain values."""
    commits = tuple(Commit(0, (1,), "") for _ in range(requests))
    found = split(output.to_wire(commits), TeacherWidth(4, 1))
    return [tuple(value.tolist() if isinstance(value, np.ndarray) else value for value in share) for share in found]


def chosen_of(rows, batch_size):
    index = None if len(rows) == batch_size else torch.tensor(rows)
    return Chosen(
        rows=tuple(rows),
        request_ids=tuple(f"r{row}" for row in rows),
        is_greedy=(True,) * len(rows),
        draft_version=3,
        target_version="7",
        row_index=index,
    )


def packed_on_device(packing, answered, features, rows, *, is_quantised=False):
    (_, lens, index), verify_input, batch, logits_output = answered
    there = [each if each is None else each.to(DEVICE) for each in (lens, index, features, rows)]
    result = (None, *there[:2])
    on_device = SimpleNamespace(**{**vars(verify_input), "draft_token": verify_input.draft_token.to(DEVICE)})
    logits = logits_output.next_token_logits.to(DEVICE)
    return packing(result, on_device, batch.seq_lens.to(DEVICE), logits, *there[2:], is_quantised).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, None])
@pytest.mark.parametrize(("rows", "batch_size"), [([0], 1), ([0, 1, 2], 3), ([2, 0], 4)])
@pytest.mark.parametrize("vocab", [7, 16, 50])
def test_the_kernel_writes_what_single_operations_make(packing, vocab, rows, batch_size, dtype):
    answered = random_round(batch_size, vocab, dtype or torch.float32, seed=vocab + batch_size)
    _, verify_input, _, logits_output = answered
    features = None if dtype is None else logits_output.hidden_states
    chosen = chosen_of(rows, batch_size)
    assert fits(verify_input, logits_output.next_token_logits, features)
    buffer = packed_on_device(packing, answered, features, chosen.row_index)
    expected = by_operations(chosen, features is not None, answered)
    head = partial(sglang_capture._packed_head, chosen, WIDTH, FEATURE_DTYPES[dtype or torch.float32])
    packed = ForwardOutput(
        chosen=chosen, tensors={PACKED: buffer}, make_head=head, on_consume=None, on_copy_failed=None
    )
    assert shares(packed, len(rows)) == shares(expected, len(rows))
    assert packed.size_bytes == buffer.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "batch_size"), [([0], 1), ([2, 0], 4)])
def test_the_kernel_quantises_a_row_as_the_courier_would(packing, rows, batch_size, dtype):
    answered = random_round(batch_size, 16, dtype, seed=batch_size, dim=BLOCK + 8)  # in two parts
    _, verify_input, _, logits_output = answered
    features = logits_output.hidden_states
    features[0] = 0.0
    chosen = chosen_of(rows, batch_size)
    assert fits(verify_input, logits_output.next_token_logits, features, is_quantised=True)
    buffer = packed_on_device(packing, answered, features, chosen.row_index, is_quantised=True)
    head = partial(sglang_capture._packed_head, chosen, WIDTH, FeatureDtype.INT8)
    packed = ForwardOutput(
        chosen=chosen, tensors={PACKED: buffer}, make_head=head, on_consume=None, on_copy_failed=None
    )
    commits = tuple(Commit(0, (1,), "") for _ in rows)
    got = np.concatenate([share.features for share in split(packed.to_wire(commits), TeacherWidth(4, 1))])
    plain = by_operations(chosen, True, answered)
    sent = np.concatenate([share.features for share in split(plain.to_wire(commits), TeacherWidth(4, 1))])
    codes, scales = quantised(sent, FEATURE_DTYPES[dtype], FeatureDtype.INT8)
    assert got[:, 4:].tolist() == codes.tolist()
    assert scales_of(got).tolist() == scales.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_single_operations_quantise_a_row_as_the_courier_would(dtype):
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)).to(dtype)
    rows[1] = 0.0
    rows[2] *= 1e-3
    got = scaled_rows(rows).numpy()
    stored = (rows.view(torch.uint16) if dtype == torch.bfloat16 else rows).numpy()
    codes, scales = quantised(stored, FEATURE_DTYPES[dtype], FeatureDtype.INT8)
    assert got[:, 4:].tolist() == codes.tolist()
    assert scales_of(got).tolist() == scales.tolist()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_value_that_is_not_finite_leaves_a_scale_that_is_none(packing, wrong):
    answered = random_round(1, 16, torch.float32, seed=1, dim=BLOCK + 8)
    features = answered[3].hidden_states
    features[:, BLOCK + 1] = wrong
    buffer = packed_on_device(packing, answered, features, None, is_quantised=True)
    found = unpacked(committed_part(buffer.numpy(), 1, WIDTH), 1, WIDTH, FeatureDtype.INT8)[FEATURES]
    assert not np.isfinite(scales_of(found)).any()
    assert not np.isfinite(scales_of(scaled_rows(features).numpy())).any()


def scales_of(rows):
    return np.ascontiguousarray(rows[:, :4]).view(np.float32)[:, 0]


def test_what_is_sent_of_a_buffer_ends_with_the_last_committed_row():
    words = np.arange(32 + 3 * WIDTH * DIM // 2, dtype=np.int32)
    words[5:18:6] = [1, 4, 2]
    sent = committed_part(words, 3, WIDTH)
    assert sent.tolist() == words[: 32 + 7 * DIM // 2].tolist()
    arrays = unpacked(sent, 3, WIDTH, FeatureDtype.BFLOAT16)
    assert arrays[VERDICTS].tolist() == words[:18].reshape(3, 6).tolist()
    assert arrays[BEST_IDS].tolist() == np.arange(18, 30).reshape(3, 4).tolist()
    assert arrays[FEATURES].tobytes() == sent[32:].tobytes()
    assert arrays[FEATURES].shape == (7, DIM)
    assert list(unpacked(words[:32], 3, WIDTH, FeatureDtype.FLOAT32)) == [VERDICTS, BEST_IDS]


@pytest.mark.parametrize("words", [17, 29, 33])
def test_a_buffer_of_another_size_is_an_error(words):
    with pytest.raises(ValueError, match="reshape"):
        unpacked(np.zeros(words, np.int32), 3, WIDTH, FeatureDtype.FLOAT32)


@pytest.mark.parametrize(
    ("verify_input", "logits", "features"),
    [
        (SimpleNamespace(tree_topk=4), torch.zeros(4, 8), None),
        (SimpleNamespace(tree_topk=1), torch.zeros(8, 4).T, None),
        (SimpleNamespace(tree_topk=1), torch.zeros(4, 8), torch.zeros(4, 3, dtype=torch.bfloat16)),
        (SimpleNamespace(tree_topk=1), torch.zeros(4, 8), torch.zeros(8, 4).T),
    ],
)
def test_rounds_that_the_kernel_does_not_know_are_left_to_single_operations(verify_input, logits, features):
    assert not fits(verify_input, logits, features)
