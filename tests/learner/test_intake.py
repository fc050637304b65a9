"""Intake: every trace gets one outcome, and a request is held out the same way everywhere."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from paceline.buffer.stream.trace import NO_DRAFT, DraftTrace, VerifyRounds
from paceline.buffer.stream.trace_buffer import TraceEntry
from paceline.learner.claim.intake import Intake, Outcome, as_rested, is_held_out, sort_entries

INTAKE = Intake(target="target", target_versions=("1",), holdout_share=0.1, feature_width=6, vocabulary=50)

#: Numbers i below 60 whose request-i is held out at a tenth.
HELD_OUT_NUMBERS = [34, 50, 52]


@pytest.mark.parametrize(("share", "count"), [(0.1, 1000), (0.5, 5000)])
def test_the_share_of_requests_held_out_is_the_one_asked_for(share: float, count: int) -> None:
    held_out = sum(is_held_out(f"request-{i}", share) for i in range(10_000))
    assert abs(held_out - count) < 4 * (10_000 * share * (1 - share)) ** 0.5


def test_a_request_is_held_out_or_not_in_every_process_alike() -> None:
    # Fixed here, because a hash that changed between releases would train on what was held out before.
    assert [i for i in range(60) if is_held_out(f"request-{i}", 0.1)] == HELD_OUT_NUMBERS


def test_a_larger_share_holds_out_the_same_requests_and_more() -> None:
    tenth = {i for i in range(500) if is_held_out(f"r{i}", 0.1)}
    assert tenth < {i for i in range(500) if is_held_out(f"r{i}", 0.2)}


def test_every_entry_gets_one_outcome(make_trace: Callable[..., DraftTrace]) -> None:
    held, learned = HELD_OUT_NUMBERS[0], HELD_OUT_NUMBERS[0] + 1
    traces = {
        "1-0": make_trace(learned),
        "1-1": make_trace(held),
        "1-2": make_trace(learned, replica="again"),
        "1-3": make_trace(learned + 1, target="other"),
        "1-4": make_trace(learned + 1, target_version="0"),
        "1-5": make_trace(learned + 1, feature_dim=0),
        "1-6": make_trace(99, trace_id="seen before"),
        "1-7": make_trace(learned + 1),
        "1-8": make_trace(learned + 2, feature_dim=5),
    }
    entries = [TraceEntry(entry_id, trace) for entry_id, trace in traces.items()]
    found = sort_entries(entries, INTAKE, {"seen before"})
    assert {outcome: [entry.entry_id for entry in kept] for outcome, kept in found.items()} == {
        Outcome.LEARNED: ["1-0", "1-7"],
        Outcome.RESTED: [],
        Outcome.HELD_OUT: ["1-1"],
        Outcome.EXPIRED: [],
        Outcome.OTHER_TARGET_VERSION: ["1-3", "1-4"],
        Outcome.DUPLICATE: ["1-2", "1-6"],
        Outcome.NO_FEATURES: ["1-5"],
        Outcome.TARGET_MOVED: [],
        Outcome.NO_PREFIX: [],
        Outcome.MISREPLAYED: [],
        Outcome.INCOMPATIBLE: ["1-8"],
    }


def other_rounds(trace: DraftTrace, field: str, value: int) -> VerifyRounds:
    """The trace's rounds with one id changed where no committed token depends on it."""
    array = getattr(trace.rounds, field).copy()
    array[-1, -1] = value
    return replace(trace.rounds, **{field: array})


@pytest.mark.parametrize("worst", [-2, 50])
def test_ids_outside_the_vocabulary_are_refused_wherever_they_occur(
    make_trace: Callable[..., DraftTrace], worst: int
) -> None:
    seed = next(n for n in range(99) if make_trace(n).rounds.accepted[-1] < 3)
    trace = make_trace(seed)
    tokens = trace.tokens.copy()
    tokens[0] = worst
    changed = [
        replace(trace, tokens=tokens),
        replace(trace, rounds=other_rounds(trace, "drafted", worst)),
        replace(trace, rounds=other_rounds(trace, "teacher_ids", worst)),
    ]
    assert [INTAKE.outcome(bad) for bad in changed] == [Outcome.INCOMPATIBLE] * 3
    assert INTAKE.outcome(trace) in {Outcome.LEARNED, Outcome.HELD_OUT}


def test_a_chain_shorter_than_the_widest_and_rounds_without_a_teacher_are_accepted(
    make_trace: Callable[..., DraftTrace],
) -> None:
    seed = next(n for n in range(99) if make_trace(n).rounds.accepted[-1] < 3)
    shorter = other_rounds(make_trace(seed), "drafted", NO_DRAFT)
    for trace in (make_trace(seed, rounds=0), make_trace(seed, top_k=0), replace(make_trace(seed), rounds=shorter)):
        assert INTAKE.outcome(trace) in {Outcome.LEARNED, Outcome.HELD_OUT}


def test_in_a_rest_only_what_would_be_learned_has_another_outcome(make_trace: Callable[..., DraftTrace]) -> None:
    entries = [TraceEntry(f"1-{i}", make_trace(i)) for i in range(30, 40)]
    entries.append(TraceEntry("2-0", make_trace(1, target="other")))
    claimed = sort_entries(entries, INTAKE, ())
    rested = as_rested(claimed)
    expected = [f"1-{i}" for i in range(30, 40) if i != HELD_OUT_NUMBERS[0]]
    assert [entry.entry_id for entry in rested[Outcome.RESTED]] == expected
    assert rested[Outcome.LEARNED] == []
    for outcome in set(Outcome) - {Outcome.LEARNED, Outcome.RESTED}:
        assert rested[outcome] == claimed[outcome]
    assert sum(map(len, rested.values())) == len(entries)


@pytest.mark.parametrize("seed", [HELD_OUT_NUMBERS[0], HELD_OUT_NUMBERS[0] + 1])
def test_a_trace_past_its_time_to_live_is_expired_before_anything_else_is_checked(
    make_trace: Callable[..., DraftTrace], seed: int
) -> None:
    trace = make_trace(seed, born_at=1000.0)
    for now_s, is_expired in ((1060.0, False), (1060.1, True), (999.0, False)):
        intake = replace(INTAKE, ttl_s=60.0, now_s=now_s)
        assert (intake.outcome(trace) is Outcome.EXPIRED) is is_expired
        assert (intake.outcome(replace(trace, target="other")) is Outcome.EXPIRED) is is_expired
    assert replace(INTAKE, now_s=1e12).outcome(trace) is not Outcome.EXPIRED


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"offset": 3, "prefix": np.array([7, 8, 9], np.int32)}, None),
        ({"offset": 3}, Outcome.NO_PREFIX),
        ({"offset": 1, "prefix": np.array([50], np.int32)}, Outcome.INCOMPATIBLE),
        ({"target_version": "0"}, Outcome.TARGET_MOVED),
        ({"target_version": "2"}, Outcome.OTHER_TARGET_VERSION),
    ],
)
def test_a_trace_without_features_is_kept_where_they_can_be_recomputed_and_refused_with_the_reason_elsewhere(
    make_trace: Callable[..., DraftTrace], changes: dict[str, object], expected: Outcome | None
) -> None:
    intake = replace(INTAKE, target_versions=("0", "1"), recomputed_version="1")
    for number, kept in ((HELD_OUT_NUMBERS[0], Outcome.HELD_OUT), (HELD_OUT_NUMBERS[0] + 1, Outcome.LEARNED)):
        trace = make_trace(number, feature_dim=0, **changes)
        assert intake.outcome(trace) is (expected or kept)
        assert replace(intake, recomputed_version=None).outcome(trace) in {
            Outcome.NO_FEATURES,
            Outcome.OTHER_TARGET_VERSION,
        }


def test_features_that_were_captured_need_no_weights_on_disk(make_trace: Callable[..., DraftTrace]) -> None:
    intake = replace(INTAKE, target_versions=("0", "1"), recomputed_version="1")
    assert intake.outcome(make_trace(HELD_OUT_NUMBERS[0] + 1, target_version="0", offset=3)) is Outcome.LEARNED


def test_traces_of_known_older_targets_are_trained_on_and_never_held_out(
    make_trace: Callable[..., DraftTrace],
) -> None:
    intake = replace(INTAKE, target_versions=("3", "4"))
    held, learned = HELD_OUT_NUMBERS[0], HELD_OUT_NUMBERS[0] + 1
    found = {
        (seed, version): intake.outcome(make_trace(seed, target_version=version))
        for seed in (held, learned)
        for version in ("2", "3", "4", "5")
    }
    other = Outcome.OTHER_TARGET_VERSION
    assert [found[learned, version] for version in "2345"] == [other, Outcome.LEARNED, Outcome.LEARNED, other]
    assert [found[held, version] for version in "2345"] == [other, other, Outcome.HELD_OUT, other]
