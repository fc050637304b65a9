"""Traces that break an alignment rule are refused, with got and expected quoted."""

import numpy as np
import pytest
from paceline.buffer.errors import TraceInvalid
from paceline.buffer.stream.trace import NO_DRAFT, DraftTrace, FeatureDtype, Sampling, VerdictRule, VerifyRounds


def ints(*values: object) -> np.ndarray:
    return np.array(values, np.int32)


def rounds(**changes: np.ndarray) -> VerifyRounds:
    """Roots at 2 and 4: draft 13 is accepted, 99 is not; then 15 and 16 are."""
    arrays = {
        "starts": ints(2, 4),
        "drafted": ints([13, 99], [15, 16]),
        "accepted": ints(1, 2),
        "teacher_ids": np.zeros((2, 3, 1), np.int32),
        "teacher_logprobs": np.zeros((2, 3, 1), np.float16),
    }
    return VerifyRounds(**(arrays | changes))


def trace(**changes: object) -> DraftTrace:
    fields = {
        "trace_id": "t",
        "request_id": "r",
        "replica": "",
        "tenant": "",
        "target": "target",
        "target_version": "1",
        "draft_version": -1,
        "verdict_rule": VerdictRule.GREEDY,
        "sampling": Sampling(),
        "born_at": 0.0,
        "offset": 0,
        "tokens": ints(10, 11, 12, 13, 14, 15, 16, 17),
        "context_len": 2,
        "rounds": rounds(),
        "features": np.zeros((7, 2), np.float32),
        "feature_dtype": FeatureDtype.FLOAT32,
        "replay_exact": True,
        "finish": "stop",
    }
    return DraftTrace(**(fields | changes))


def test_the_trace_that_these_tests_vary_is_legal():
    made = trace()
    assert made.committed_len == 6
    assert len(made.rounds) == 2
    assert made.visible_accepted().tolist() == [1, 2]


def test_a_last_round_cut_by_the_end_of_the_request_shows_fewer_drafts():
    cut = trace(tokens=ints(10, 11, 12, 13, 14, 15), features=np.zeros((5, 2), np.float32))
    assert cut.rounds.accepted.tolist() == [1, 2]
    assert cut.visible_accepted().tolist() == [1, 1]
    assert cut.visible_accepted().dtype == np.int32


def test_a_short_chain_is_padded_and_the_padding_is_not_proposed():
    assert rounds(drafted=ints([13, NO_DRAFT], [15, 16])).accepted.tolist() == [1, 2]
    with pytest.raises(TraceInvalid, match=r"rounds.accepted\[1\]: got 2, expected 0..1"):
        rounds(drafted=ints([13, NO_DRAFT], [15, NO_DRAFT]))


@pytest.mark.parametrize("without", ["teachers", "features", "rounds"])
def test_what_was_not_captured_may_be_absent(without):
    none = np.zeros((2, 3, 0), np.int32)
    changes = {
        "teachers": {"rounds": rounds(teacher_ids=none, teacher_logprobs=none.astype(np.float16))},
        "features": {"features": np.zeros((0, 0), np.float32)},
        "rounds": {
            "rounds": VerifyRounds(
                starts=ints(),
                drafted=np.zeros((0, 2), np.int32),
                accepted=ints(),
                teacher_ids=np.zeros((0, 3, 1), np.int32),
                teacher_logprobs=np.zeros((0, 3, 1), np.float16),
            )
        },
    }
    assert len(trace(**changes[without]).tokens) == 8


BROKEN_ROUNDS = {
    "starts are not a row": ({"starts": ints([2, 4])}, r"got \(2, 2, 1, 3\), expected \(1, 2, 1, 3\)"),
    "starts are a scalar": ({"starts": np.int32(2).reshape(())}, r"got \(0, 2, 1, 3\)"),
    "drafted is not a table": ({"drafted": ints(13, 15)}, r"got \(1, 1, 1, 3\)"),
    "teachers lack an axis": ({"teacher_ids": np.zeros((2, 3), np.int32)}, r"got \(1, 2, 1, 2\)"),
    "a drafted row is missing": ({"drafted": ints([13, 99])}, r"drafted rows: got \(1,\), expected \(2,\)"),
    "a verdict is missing": ({"accepted": ints(1)}, r"accepted: got \(1,\), expected \(2,\)"),
    "a node is missing": (
        {"teacher_ids": np.zeros((2, 2, 1), np.int32)},
        r"teacher_ids nodes: got \(2, 2\), expected \(2, 3\)",
    ),
    "a probability is missing": (
        {"teacher_logprobs": np.zeros((2, 3, 2), np.float16)},
        r"teacher_logprobs: got \(2, 3, 2\), expected \(2, 3, 1\)",
    ),
    "starts of another dtype": ({"starts": np.array([2, 4])}, "rounds: got int64, expected int32"),
    "probabilities of another dtype": (
        {"teacher_logprobs": np.zeros((2, 3, 1), np.float32)},
        "teacher_logprobs: got float32, expected float16",
    ),
    "negative verdict": ({"accepted": ints(-1, 2)}, r"accepted\[0\]: got -1, expected 0..2"),
    "more accepted than proposed": ({"accepted": ints(1, 3)}, r"accepted\[1\]: got 3, expected 0..2"),
    "a hole in a chain": (
        {"drafted": ints([13, 99], [NO_DRAFT, 16])},
        "drafted: got a hole in round 1, expected -1 only at its end",
    ),
}

BROKEN_TRACES = {
    "tokens of another dtype": ({"tokens": np.arange(8)}, "tokens: got int64, expected int32"),
    "tokens are a table": ({"tokens": ints([10, 11], [12, 13])}, r"expected 0..\(2, 2\)"),
    "context longer than the window": ({"context_len": 9}, "context_len: got 9"),
    "negative context": ({"context_len": -1}, "context_len: got -1"),
    "negative offset": ({"offset": -3}, "got -3 and 't', expected >= 0 and a name"),
    "no name": ({"trace_id": ""}, "got 0 and '', expected >= 0 and a name"),
    "features are a row": ({"features": np.zeros(7, np.float32)}, "features axes: got 1, expected 2"),
    "features of another dtype": ({"features": np.zeros((7, 2))}, "features: got float64, expected float32"),
    "bfloat16 not as bits": ({"feature_dtype": FeatureDtype.BFLOAT16}, "features: got float32, expected uint16"),
    "more features than tokens": ({"features": np.zeros((9, 2), np.float32)}, "got 9 rows, expected at most 8"),
    "features end before the last root": (
        {"features": np.zeros((3, 2), np.float32)},
        "got 3 rows, expected at least 4",
    ),
    "a root within the context": ({"context_len": 4}, r"rounds.starts: got 2..4, expected within 3..7"),
    "a root past the window": (
        {"tokens": ints(10, 11, 12, 13), "features": np.zeros((3, 2), np.float32)},
        r"rounds.starts: got 2..4, expected within 1..3",
    ),
    "a gap between rounds": ({"rounds": rounds(accepted=ints(0, 2))}, r"starts\[1\]: got 4, expected 3"),
    "an accepted draft that was not committed": (
        {"rounds": rounds(drafted=ints([13, 99], [15, 20]))},
        "round at 4: got another token than accepted draft 1, expected it",
    ),
}


@pytest.mark.parametrize("case", BROKEN_ROUNDS)
def test_rounds_that_break_a_rule_are_refused(case):
    changes, message = BROKEN_ROUNDS[case]
    with pytest.raises(TraceInvalid, match=message):
        rounds(**changes)


@pytest.mark.parametrize("case", BROKEN_TRACES)
def test_traces_that_break_a_rule_are_refused(case):
    changes, message = BROKEN_TRACES[case]
    with pytest.raises(TraceInvalid, match=message):
        trace(**changes)


SECRET = 987_654  # a token id that is used nowhere else


@pytest.mark.guarantee("no-content-in-logs")
@pytest.mark.parametrize(
    "broken",
    [
        lambda: rounds(drafted=ints([SECRET, 99], [NO_DRAFT, SECRET])),
        lambda: rounds(drafted=ints([SECRET, SECRET], [15, SECRET]), accepted=ints(1, 3)),
        lambda: trace(rounds=rounds(drafted=ints([13, SECRET], [15, SECRET]))),
        lambda: trace(rounds=rounds(drafted=ints([SECRET, SECRET], [SECRET, 16]), accepted=ints(0, 2))),
        lambda: trace(tokens=ints(*[SECRET] * 8)),
    ],
)
def test_no_message_holds_a_token_of_the_user(broken):
    with pytest.raises(TraceInvalid) as caught:
        broken()
    assert str(SECRET) not in str(caught.value)
