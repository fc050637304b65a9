"""Intake: every trace gets one outcome, and a request is held out the same way everywhere."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from paceline.buffer.base import TraceEntry
from paceline.buffer.trace import NO_DRAFT, DraftTrace, VerifyRounds
from paceline.learner.intake import Intake, Outcome, is_held_out, sort_entries

INTAKE = Intake("target", "1", 0.1, feature_width=6, vocabulary=50)

#: Numbers i below 60 whose request-i is held out at a tenth.
WRITTEN_DOWN = [34, 50, 52]


@pytest.mark.parametrize(("share", "count"), [(0.1, 1000), (0.5, 5000)])
def test_the_share_of_requests_held_out_is_the_one_asked_for(share: float, count: int) -> None:
    held_out = sum(is_held_out(f"request-{i}", share) for i in range(10_000))
    assert abs(held_out - count) < 4 * (10_000 * share * (1 - share)) ** 0.5


def test_a_request_falls_the_same_way_in_every_process() -> None:
    # Written down: a hash that changed between releases would train on what was held out before.
    assert [i for i in range(60) if is_held_out(f"request-{i}", 0.1)] == WRITTEN_DOWN


def test_a_larger_share_holds_out_the_same_requests_and_more() -> None:
    tenth = {i for i in range(500) if is_held_out(f"r{i}", 0.1)}
    assert tenth < {i for i in range(500) if is_held_out(f"r{i}", 0.2)}


def test_every_entry_gets_one_outcome(make_trace: Callable[..., DraftTrace]) -> None:
    held, learnt = WRITTEN_DOWN[0], WRITTEN_DOWN[0] + 1
    traces = {
        "1-0": make_trace(learnt),
        "1-1": make_trace(held),
        "1-2": make_trace(learnt, replica="again"),
        "1-3": make_trace(learnt + 1, target="other"),
        "1-4": make_trace(learnt + 1, target_version="0"),
        "1-5": make_trace(learnt + 1, feature_dim=0),
        "1-6": make_trace(99, trace_id="seen before"),
        "1-7": make_trace(learnt + 1),
        "1-8": make_trace(learnt + 2, feature_dim=5),
    }
    entries = [TraceEntry(entry_id, trace) for entry_id, trace in traces.items()]
    found = sort_entries(entries, INTAKE, {"seen before"})
    assert {outcome: [entry.entry_id for entry in kept] for outcome, kept in found.items()} == {
        Outcome.LEARNED: ["1-0", "1-7"],
        Outcome.HELD_OUT: ["1-1"],
        Outcome.OTHER_TARGET_VERSION: ["1-3", "1-4"],
        Outcome.DUPLICATE: ["1-2", "1-6"],
        Outcome.NO_FEATURES: ["1-5"],
        Outcome.INCOMPATIBLE: ["1-8"],
    }


def other_rounds(trace: DraftTrace, field: str, value: int) -> VerifyRounds:
    """The trace's rounds with one id changed where no committed token depends on it."""
    array = getattr(trace.rounds, field).copy()
    array[-1, -1] = value
    return replace(trace.rounds, **{field: array})


@pytest.mark.parametrize("worst", [-2, 50])
def test_ids_that_the_vocabulary_does_not_have_are_refused_wherever_they_stand(
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


def test_a_chain_shorter_than_the_widest_and_rounds_without_a_teacher_are_taken(
    make_trace: Callable[..., DraftTrace],
) -> None:
    seed = next(n for n in range(99) if make_trace(n).rounds.accepted[-1] < 3)
    shorter = other_rounds(make_trace(seed), "drafted", NO_DRAFT)
    for trace in (make_trace(seed, rounds=0), make_trace(seed, top_k=0), replace(make_trace(seed), rounds=shorter)):
        assert INTAKE.outcome(trace) in {Outcome.LEARNED, Outcome.HELD_OUT}
