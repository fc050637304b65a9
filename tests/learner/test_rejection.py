"""Requests verified by rejection sampling: scored by expectation, compared with what was served, judged by the gate."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from learner_traffic import BATCH, by_rejection
from paceline.buffer.board.version import VersionState
from paceline.learner.claim.intake import Outcome
from paceline.learner.delivery import delivery
from paceline.learner.judging.alarms import gap_alarm
from paceline.learner.judging.calibration import Calibration, compare_with_served
from paceline.learner.judging.paired_replay import paired, unscored
from paceline.learner.judging.replay import replay_logprobs
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.learner.round.learning_report import LearningKind
from paceline.policies.acceptance import Tally, served_tally
from paceline.policies.guard import AlarmName
from paceline.policies.paired import Paired
from paceline.policies.promotion import Promotion, Verdict
from paceline.policies.rejection import EstimatedRounds, expected_tally


@pytest.fixture
def draft(tiny_speculator: Any) -> Any:
    return load_draft(tiny_speculator.draft, load_target_embedding(tiny_speculator.target))


def expected_of(draft: Any, trace: Any) -> Tally:
    (logq,) = replay_logprobs(draft, [trace], 3)
    return expected_tally(trace, logq)


def close(tally: Tally) -> Any:
    return pytest.approx((tally.accepted, tally.rounds), rel=1e-5)


def test_they_are_scored_by_expectation_beside_requests_scored_by_counts(tiny_speculator, draft) -> None:
    greedy, warm = tiny_speculator.serve(0), by_rejection(tiny_speculator.serve(1), draft)
    later = by_rejection(tiny_speculator.serve(2, request_id="request-1"), draft)
    assert unscored([greedy, warm, later]) == {}
    first, second = expected_of(draft, warm), expected_of(draft, later)
    assert 0.0 < first.accepted % 1.0 < 1.0
    counted, expected = paired([greedy, warm, later], draft, draft, 3)
    assert counted == Paired(greedy.tenant, served_tally(greedy), served_tally(greedy))
    assert (expected.line.accepted, expected.line.rounds) == close(first + second)
    assert expected.line == expected.reference


def test_edited_and_limited_requests_are_left_out_and_counted(tiny_speculator, draft) -> None:
    warm = by_rejection(tiny_speculator.serve(1), draft)
    chances = warm.rounds.committed_logprobs.copy()
    chances[..., 0] = np.nan
    limited, edited = (replace(warm, request_id=name, trace_id=name) for name in ("limited", "edited"))
    limited = replace(limited, rounds=replace(warm.rounds, committed_logprobs=chances))
    edited = replace(edited, sampling=replace(warm.sampling, edited=True))
    traces = (warm, limited, edited)
    assert unscored(traces) == {"rejection (target's chances not recorded)": 1, "rejection (edited logits)": 1}
    assert len(paired(traces, draft, draft, 3)) == 1


def rejected(house, draft: Any, count: int = BATCH) -> list[Any]:
    """Send `count` traces that rejection sampling has accepted drafts of `draft` in."""
    traces = [by_rejection(house.speculator.serve(i), draft) for i in range(house.sent, house.sent + count)]
    house.sent += count
    house.buffer.append(traces)
    return traces


def test_the_gate_judges_them_and_needs_no_canary(house, draft, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Promotion] = []
    judge = delivery.judge

    def promoting(*args: Any, **named: Any) -> Promotion:
        judged.append(judge(*args, **named))
        return replace(judged[-1], verdict=Verdict.PROMOTE)

    monkeypatch.setattr(delivery, "judge", promoting)
    traces = rejected(house, draft)[BATCH // 2 :]  # in the first half the line is the live version itself
    report = house.learner().learn_once()
    (found,) = judged
    assert found.verdict in {Verdict.PROMOTE, Verdict.REFUSE}
    assert found.measured.requests == len(traces)
    live = sum((expected_of(draft, trace) for trace in traces), Tally())
    assert found.measured.reference_accept_length == pytest.approx(live.accept_length, rel=1e-5)
    assert found.measured.reference_accept_length != found.measured.line_accept_length
    state = house.board.read()
    assert (report.version, state.live, state.rows[1].state) == (1, 1, VersionState.LIVE)


def test_what_was_served_is_compared_with_the_expectation_of_the_draft_that_served(house, draft) -> None:
    learner = house.learner()
    learner.learn_once()  # puts the initial draft on the board
    state, drafts = house.board.read(), learner._state.drafts
    traces = [by_rejection(house.speculator.serve(i), draft) for i in range(24)]
    right = compare_with_served(traces, state, drafts)
    assert (right.compared, right.estimated.rounds) == (0, sum(len(trace.rounds) for trace in traces))
    assert right.estimated.accepted == sum(int(trace.visible_accepted().sum()) for trace in traces)
    assert abs(right.estimated.accepted - right.estimated.expected) < 4 * right.estimated.variance**0.5
    assert gap_alarm(right) is None
    hot = [replace(trace, sampling=replace(trace.sampling, temperature=0.05)) for trace in traces]
    wrong = compare_with_served(hot, state, drafts)  # as if the server drafted at another temperature
    assert gap_alarm(wrong).name is AlarmName.CALIBRATION_GAP
    inexact = [replace(trace, replay_exact=False) for trace in traces]
    assert compare_with_served(inexact, state, drafts) == Calibration()


@pytest.mark.parametrize(
    ("expected", "variance", "is_raised"),
    [(307.0, 0.0, True), (305.0, 0.0, False), (330.0, 100.0, False), (350.0, 100.0, True), (250.0, 100.0, True)],
)
def test_chance_excuses_a_gap_between_served_and_expected(expected, variance, is_raised) -> None:
    found = Calibration(estimated=EstimatedRounds(300, 300, expected, variance))
    assert (gap_alarm(found) is not None) is is_raised
    assert gap_alarm(Calibration(estimated=EstimatedRounds(199, 300, 600.0, 0.0))) is None  # too few rounds


def test_a_claim_served_otherwise_than_expected_is_set_aside(house, draft, monkeypatch: pytest.MonkeyPatch) -> None:
    gap = Calibration(estimated=EstimatedRounds(300, 300, 400.0, 100.0))
    monkeypatch.setattr("paceline.learner.state.learner_state.compare_with_served", lambda *_: gap)
    traces = rejected(house, draft)
    report = house.learner().learn_once()
    assert report.kind is LearningKind.RESTED
    assert report.alarm.name is AlarmName.CALIBRATION_GAP
    assert report.outcomes == {Outcome.MISREPLAYED: len(traces)}
