"""Letters keep every byte, and cutting finds each request's own rows."""

import numpy as np
import pytest
from paceline.buffer.trace import FeatureDtype, Sampling, VerdictRule
from paceline.serving.cut import Forward, cut_prefill, cut_verify, top_logprobs
from paceline.serving.letters import (
    FEATURES,
    LOGITS,
    READ_IDS,
    TEACHER_IDS,
    TEACHER_LOGPROBS,
    VERDICTS,
    Letter,
    PrefillHead,
    Resume,
    VerifyHead,
    decode_letter,
    encode_letter,
)
from paceline.serving.steps import Commit, RequestFacts

FACTS = RequestFacts("acme", Sampling(0.7, 40, 0.9, True), VerdictRule.TARGET_ONLY)
VERIFY = VerifyHead(("a", "b"), 4, (Commit(1, (8, 5), ""), Commit(3, (6,), "length")), FeatureDtype.BFLOAT16)
# root, two drafts, position of the root, accepted drafts plus the bonus token
VERDICT_ROWS = np.asarray([[7, 8, 9, 20, 2], [3, 4, 5, 30, 1]], np.int32)


def sent(letter, arrays=None):
    return decode_letter([bytes(frame) for frame in encode_letter(letter, arrays or {})])


def test_a_letter_arrives_as_it_was_sent():
    arrays = {
        FEATURES: np.arange(12, dtype=np.uint16).reshape(3, 4).T,  # not contiguous
        LOGITS: np.zeros((0, 3, 5), np.float32),
    }
    head = PrefillHead(("a",), 2, (Commit(-1, (), "abort"),), (FACTS,), ((5, 0, 3),), FeatureDtype.BFLOAT16)
    letter, got = sent(
        Letter(head, lost=("x",), status={"swaps": [{"at": 1.5}]}, resume=Resume({"a": 1}, ("y",), 2)), arrays
    )
    assert (letter.head, letter.lost, letter.status, letter.resume) == (
        head, ("x",), {"swaps": [{"at": 1.5}]}, Resume({"a": 1}, ("y",), 2),
    )  # fmt: skip
    for name, array in arrays.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("spoil", [lambda f: f[:1], lambda f: [f[0], f[1][:-1]], lambda f: [*f, b""]])
def test_frames_that_do_not_fit_their_head_are_an_error(spoil):
    frames = [bytes(frame) for frame in encode_letter(Letter(), {VERDICTS: VERDICT_ROWS})]
    with pytest.raises(ValueError, match="letter"):
        decode_letter(spoil(frames))


def test_a_verify_round_is_cut_into_each_requests_rows():
    features = np.arange(2 * 3 * 2, dtype=np.uint16).reshape(6, 2)  # depth 3 per request
    ids, logprobs = np.arange(12, dtype=np.int32).reshape(2, 3, 2), np.zeros((2, 3, 2), np.float16)
    arrays = {VERDICTS: VERDICT_ROWS, FEATURES: features, TEACHER_IDS: ids, TEACHER_LOGPROBS: logprobs}
    letter, got = sent(Letter(VERIFY), arrays)
    first, second = Forward(letter.head, got, top_k=2).steps()
    assert (first.request_id, first.root, first.root_token, first.drafted.tolist(), first.accepted) == (
        "a", 20, 7, [8, 9], 1,
    )  # fmt: skip
    assert (second.request_id, second.root, second.root_token, second.drafted.tolist(), second.accepted) == (
        "b", 30, 3, [4, 5], 0,
    )  # fmt: skip
    assert first.features.tolist() == features[0:2].tolist()
    assert second.features.tolist() == features[3:4].tolist()
    assert (first.teacher_ids.tolist(), second.teacher_ids.tolist()) == (ids[0].tolist(), ids[1].tolist())
    assert (first.commit, second.commit, second.feature_dtype) == (*VERIFY.commits, FeatureDtype.BFLOAT16)


def test_without_a_teacher_and_features_a_round_has_empty_ones():
    first, _ = cut_verify(VERIFY, {VERDICTS: VERDICT_ROWS}, 8)
    assert (first.teacher_ids.shape, first.teacher_logprobs.shape, first.features.shape) == ((3, 0), (3, 0), (0, 0))


def test_a_prefill_is_cut_at_its_spans():
    head = PrefillHead(
        ("a", "c"), 1, (Commit(0, (9,), ""), Commit(0, (4,), "")), (FACTS, FACTS), ((0, 0, 2), (16, 5, 6))
    )
    arrays = {READ_IDS: np.arange(6, dtype=np.int32), FEATURES: np.arange(6.0, dtype=np.float32).reshape(6, 1)}
    first, last = cut_prefill(head, arrays)
    assert (first.start, first.ids.tolist(), first.features.tolist()) == (0, [0, 1], [[0.0], [1.0]])
    assert (last.start, last.ids.tolist(), last.features.tolist(), last.facts) == (16, [5], [[5.0]], FACTS)


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
