"""Messages keep every byte, and splitting finds each request's own rows."""

import msgspec
import numpy as np
import pytest
import torch
from paceline.buffer.board.member_status import MemberStatus, SwapSaid, TracesSaid
from paceline.buffer.stream.trace import FeatureDtype, Sampling, VerdictRule
from paceline.serving.capture.device_output import Chosen, ForwardOutput
from paceline.serving.courier.split import split, split_prefill, split_verify, top_logprobs
from paceline.serving.wire.counts import DropReason
from paceline.serving.wire.messages import (
    BEST_IDS,
    FEATURES,
    LARGE_BYTES,
    LOGITS,
    NODES,
    READ_IDS,
    TEACHER_IDS,
    TEACHER_LOGPROBS,
    VERDICTS,
    Message,
    PrefillHead,
    Resume,
    VerifyHead,
    WireForward,
    arrays_of,
    decode_message,
    encode_message,
    to_wire,
)
from paceline.serving.wire.request_forward import Commit, RequestFacts, TeacherWidth

FACTS = RequestFacts(
    tenant="acme",
    sampling=Sampling(0.7, 40, 0.9, True),
    verdict_rule=VerdictRule.TARGET_ONLY,
    label="code",
    is_label_refused=True,
)
VERIFY = VerifyHead(
    request_ids=("a", "b"),
    draft_version=4,
    target_version="7",
    commits=(Commit(1, (8, 5), ""), Commit(3, (6,), "length")),
    is_greedy=(False, True),
    feature_dtype=FeatureDtype.BFLOAT16,
)
WIDTH = TeacherWidth(sampled=2, greedy=1)
# root, two drafts, position of the root, accepted drafts plus the bonus token
VERDICT_ROWS = np.asarray([[7, 8, 9, 20, 2], [3, 4, 5, 30, 1]], np.int32)


def sent(message):
    return decode_message(encode_message(message))


def test_a_message_arrives_as_it_was_sent():
    arrays = {
        FEATURES: np.arange(12, dtype=np.uint16).reshape(3, 4).T,  # not contiguous
        LOGITS: np.zeros((0, 3, 5), np.float32),
    }
    aborted, prefixes = (Commit(-1, (), "abort"),), (b"\x01\x00\x00\x00",)
    head = PrefillHead(
        request_ids=("a",),
        draft_version=2,
        target_version="7",
        commits=aborted,
        facts=(FACTS,),
        spans=((5, 0, 3),),
        feature_dtype=FeatureDtype.BFLOAT16,
        prefixes=prefixes,
    )
    resume = Resume(TracesSaid(captured=1), ("y",), 2)
    forwards, lost, status = (
        (to_wire(head, arrays), to_wire(VERIFY, {})),
        {"x": DropReason.FAULT},
        MemberStatus(swaps=[SwapSaid(number=1, at=1.5, stage_ms=2.0, commit_ms=1.0, running=0)]),
    )
    message = sent(
        Message(
            forwards=forwards,
            lost=lost,
            ended=("x",),
            lost_unnamed={DropReason.QUEUE_FULL: 3},
            status=status,
            resume=resume,
        )
    )
    got = arrays_of(message.forwards[0])
    assert [forward.head for forward in message.forwards] == [head, VERIFY]
    assert (message.lost, message.ended, message.lost_unnamed) == (lost, ("x",), {DropReason.QUEUE_FULL: 3})
    assert (message.status, message.resume) == (status, resume)
    for name, array in arrays.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


def test_a_large_array_is_a_frame_of_its_own_that_is_not_copied():
    large = np.arange(LARGE_BYTES // 8, dtype=np.int64).reshape(-1, 4)
    arrays = [{FEATURES: large[:-1]}, {READ_IDS: large + 1, FEATURES: large + 2}]
    frames = encode_message(Message(forwards=tuple(to_wire(VERIFY, each) for each in arrays)))
    assert [len(frame) for frame in frames[1:]] == [LARGE_BYTES] * 2
    assert len(large[:-1].tobytes()) < len(frames[0]) < LARGE_BYTES + 1000
    assert np.shares_memory(np.frombuffer(frames[1], np.int64), arrays[1][READ_IDS])
    message = decode_message(frames)
    for forward, sent_arrays in zip(message.forwards, arrays, strict=True):
        got = arrays_of(forward)
        assert list(got) == list(sent_arrays)
        for name, array in sent_arrays.items():
            np.testing.assert_array_equal(got[name], array)
            assert not got[name].flags.writeable


def test_a_message_without_one_of_its_frames_is_an_error():
    frames = encode_message(Message(forwards=(to_wire(VERIFY, {FEATURES: np.zeros(LARGE_BYTES, np.uint8)}),)))
    with pytest.raises(msgspec.DecodeError, match="array features: got frame 0, expected one of 0"):
        decode_message(frames[:1])


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (("verdicts", "<i4", (2, 5), memoryview(b"1234")), "array verdicts got 4 bytes, expected 40"),
        (("verdicts", "<i4", (1,), memoryview(b"12345")), "array verdicts got 5 bytes, expected 4"),
    ],
)
def test_arrays_that_do_not_fit_their_shape_are_an_error(block, said):
    with pytest.raises(ValueError, match=said):
        arrays_of(sent(Message(forwards=(WireForward(VERIFY, (block,)),))).forwards[0])


FEATURE_ROWS = np.arange(3 * 2, dtype=np.uint16).reshape(3, 2)  # two of the first request, one of the second


def test_a_verify_round_is_split_into_each_requests_rows():
    ids = np.arange(12, dtype=np.int32).reshape(2, 3, 2)
    arrays = {
        VERDICTS: VERDICT_ROWS,
        FEATURES: FEATURE_ROWS,
        TEACHER_IDS: ids,
        TEACHER_LOGPROBS: np.full((2, 3, 2), -1.5, np.float16),
    }
    first, second = split(sent(Message(forwards=(to_wire(VERIFY, arrays),))).forwards[0], WIDTH)
    assert (first.request_id, first.root, first.root_token, first.drafted.tolist(), first.accepted) == (
        "a", 20, 7, [8, 9], 1,
    )  # fmt: skip
    assert (second.request_id, second.root, second.root_token, second.drafted.tolist(), second.accepted) == (
        "b", 30, 3, [4, 5], 0,
    )  # fmt: skip
    assert first.features.tolist() == FEATURE_ROWS[:2].tolist()
    assert second.features.tolist() == FEATURE_ROWS[2:].tolist()
    assert (first.teacher_ids.tolist(), first.teacher_logprobs.tolist()) == (ids[0].tolist(), [[-1.5, -1.5]] * 3)
    assert second.teacher_ids.tolist() == ids[1, :, :1].tolist()
    assert second.teacher_logprobs.tolist() == [[0.0]] * 3  # greedy: all of the mass on the best token
    assert (first.commit, second.commit, first.feature_dtype) == (*VERIFY.commits, FeatureDtype.BFLOAT16)
    assert {(share.draft_version, share.target_version) for share in (first, second)} == {(4, "7")}


def test_best_tokens_alone_are_a_teacher_of_greedy_requests_only():
    best = np.asarray([[8, 5, 2], [6, 1, 1]], np.int32)
    first, second = split_verify(VERIFY, {VERDICTS: VERDICT_ROWS, BEST_IDS: best}, TeacherWidth(sampled=0, greedy=1))
    assert (first.teacher_ids.shape, first.teacher_logprobs.shape) == ((3, 0), (3, 0))
    assert (second.teacher_ids.tolist(), second.teacher_logprobs.tolist()) == ([[6], [1], [1]], [[0.0]] * 3)


def test_whole_logits_become_as_many_entries_as_the_request_asks():
    logits = np.random.default_rng(1).normal(0, 3, (2, 3, 9)).astype(np.float32)
    first, second = split_verify(VERIFY, {VERDICTS: VERDICT_ROWS, LOGITS: logits}, TeacherWidth(sampled=1, greedy=3))
    assert first.teacher_ids[:, 0].tolist() == logits[0].argmax(-1).tolist()
    assert second.teacher_ids.tolist() == np.argsort(-logits[1], axis=-1)[:, :3].tolist()
    assert (first.teacher_logprobs < 0).all()


def test_feature_rows_that_do_not_fit_the_verdicts_are_an_error():
    arrays = {VERDICTS: VERDICT_ROWS, FEATURES: np.zeros((2, 2), np.float32)}
    with pytest.raises(ValueError, match="got 2 rows, expected 3"):
        split_verify(VERIFY, arrays, WIDTH)


def test_without_a_teacher_and_features_a_round_has_empty_ones():
    first, _ = split_verify(VERIFY, {VERDICTS: VERDICT_ROWS}, WIDTH)
    assert (first.teacher_ids.shape, first.teacher_logprobs.shape, first.features.shape) == ((3, 0), (3, 0), (0, 0))


COMMIT = Commit(1, (8,), "")


def test_rows_after_the_accepted_ones_are_left_out():
    depth = 3
    rows = torch.arange(3 * depth * 2.0).view(-1, 2).to(torch.bfloat16)
    verdicts = torch.cat([torch.zeros(3, 4), torch.tensor([[2], [0], [1]])], dim=1).long()
    nodes = torch.tensor([[4, 5, -1], [-1, -1, -1], [8, -1, -1]])
    chosen = Chosen(
        rows=(0, 1, 2), request_ids=("a", "b", "c"), is_greedy=(True,) * 3, draft_version=0, target_version="7"
    )
    ways = {"a device's": ({FEATURES: rows}, [0, 1, 6]), "a host's": ({FEATURES: rows, NODES: nodes}, [4, 5, 8])}
    for way, (tensors, kept) in ways.items():
        forward = ForwardOutput(
            chosen=chosen,
            tensors={VERDICTS: verdicts, **tensors},
            make_head=head_of(chosen),
            on_consume=lambda *_: None,
            on_copy_failed=lambda *_: None,
        )
        shares = split(sent(Message(forwards=(forward.to_wire((COMMIT,) * 3),))).forwards[0], WIDTH)
        assert {share.feature_dtype for share in shares} == {FeatureDtype.BFLOAT16}
        assert [len(share.features) for share in shares] == [2, 0, 1], way
        assert [row for share in shares for row in share.features.tolist()] == rows[kept].view(torch.uint16).tolist(), (
            way
        )


def head_of(chosen):
    return lambda commits, dtype: VerifyHead(
        request_ids=chosen.request_ids,
        draft_version=0,
        target_version="7",
        commits=commits,
        is_greedy=chosen.is_greedy,
        feature_dtype=dtype,
    )


def test_a_prefill_is_split_at_its_spans():
    head = PrefillHead(
        request_ids=("a", "c"),
        draft_version=1,
        target_version="7",
        commits=(Commit(0, (9,), ""), Commit(0, (4,), "")),
        facts=(FACTS, FACTS),
        spans=((0, 0, 2), (16, 5, 6)),
    )
    arrays = {READ_IDS: np.arange(6, dtype=np.int32), FEATURES: np.arange(6.0, dtype=np.float32).reshape(6, 1)}
    first, last = split_prefill(head, arrays)
    assert (first.start, first.ids.tolist(), first.features.tolist()) == (0, [0, 1], [[0.0], [1.0]])
    assert (last.start, last.ids.tolist(), last.features.tolist(), last.facts) == (16, [5], [[5.0]], FACTS)
    assert {(share.draft_version, share.target_version) for share in (first, last)} == {(1, "7")}


def test_whole_logits_become_the_same_teacher_a_slow_softmax_finds():
    logits = np.random.default_rng(3).normal(0, 3, (2, 3, 50)).astype(np.float32)
    ids, logprobs = top_logprobs(logits, 4)
    wide = logits.astype(np.float64)
    oracle = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    for request in range(2):
        for node in range(3):
            best = sorted(range(50), key=lambda token: -oracle[request, node, token])[:4]
            assert ids[request, node].tolist() == best
            np.testing.assert_allclose(logprobs[request, node], oracle[request, node, best], atol=4e-3)
    whole, _ = top_logprobs(logits, 50)
    assert sorted(whole[0, 0].tolist()) == list(range(50))


def test_logits_of_an_impossible_token_stay_finite_for_the_others():
    logits = np.asarray([[0.0, -np.inf, 1.0]], np.float32)
    ids, logprobs = top_logprobs(logits, 3)
    assert ids.tolist() == [[2, 0, 1]]
    np.testing.assert_allclose(logprobs[0, :2], [-0.3133, -1.3133], atol=1e-3)
    assert logprobs[0, 2] == -np.inf
