"""What is too old: traces past their time to live, and traces of target weights that are not served any more."""

from dataclasses import replace

import pytest
from learner_traffic import held_out, ids, not_held_out
from paceline.learner import recovery
from paceline.learner.round.learning_report import LearningKind
from paceline.learner.state import learner_state as state
from paceline.policies.acceptance import served_by_request


@pytest.fixture
def now(monkeypatch):
    """The learner's unix seconds, for a test to set."""
    clock = [1_700_000_000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    return clock


def test_traces_past_their_time_to_live_are_counted_and_not_trained_on(house, now):
    old, young = house.send(10, born_at=now[0] - 61.0), house.send(12, born_at=now[0] - 60.0)
    report = house.learner(trace_ttl_s=60.0).learn_once()
    kept = len(held_out(young))
    assert report.outcomes == {"expired": len(old), "learned": 12 - kept, "held_out": kept}
    assert set(house.fitted[0]) == set(ids(not_held_out(young)))
    assert house.buffer.counts().acked["expired"] == len(old)


def test_what_expires_later_leaves_replay_and_stays_out_after_a_restart(house, now):
    learner = house.learner(trace_ttl_s=60.0)
    first = house.send(born_at=now[0])
    learner.learn_once()
    now[0] += 61.0
    learner.learn_once()  # idle, but it drops expired traces
    assert list(learner._state.replay_buffer) == []
    second = house.send(born_at=now[0])
    learner.learn_once()
    assert house.replayed[-1] == []
    restarted = house.learner(trace_ttl_s=60.0)
    restarted.learn_once()
    assert {entry.trace.trace_id for entry in restarted._state.replay_buffer} == set(ids(not_held_out(second)))
    # Learned while they were young enough, and counted once.
    assert house.buffer.counts().acked == {
        "learned": 48 - len(held_out(first + second)),
        "held_out": len(held_out(first + second)),
    }


def test_without_a_time_to_live_traces_of_any_age_are_accepted(house):
    house.send(born_at=0.0)
    assert house.learner().learn_once().kind is LearningKind.LEARNED


def test_traces_of_older_targets_are_trained_on_up_to_the_allowed_age(house, monkeypatch):
    made = []
    trainer = recovery.DraftTrainer

    def noted(*arguments, **named):
        made.append(named["target_versions"])
        return trainer(*arguments, **named)

    for module in (recovery, state):
        monkeypatch.setattr(module, "DraftTrainer", noted)
    by_version = {version: house.send(12, target_version=version) for version in ("6", "7", "8")}
    report = house.learner(target_version="8", target_max_age=1).learn_once()
    kept = {version: held_out(traces) for version, traces in by_version.items()}
    assert report.outcomes == {
        "learned": 24 - len(kept["7"]) - len(kept["8"]),
        "held_out": len(kept["8"]),
        "other_target_version": 12 + len(kept["7"]),
    }
    assert set(made) == {("7", "8")}
    # An older target's verdicts measure no draft: only rounds of the newest one are compared with replay.
    assert report.calibration.compared == sum(len(trace.rounds) for trace in by_version["8"])


def test_the_schedule_observes_only_the_newest_target(house):
    house.send(12, target_version="7")
    house.send(12, target_version="8")
    learner = house.learner(learn="never", target_version="8", target_versions=("7", "8"), target_max_age=1)
    learner.learn_once()
    assert len(learner._state.schedule.state()["latest"]) == 12
    assert len(learner._state.replay_buffer) > 12 - len(held_out([house.speculator.serve(i) for i in range(12, 24)]))


def test_after_a_new_target_version_only_allowed_versions_stay_in_replay(house):
    traces = house.send(24, target_version="7")
    house.learner(target_version="7").learn_once()
    for age, left in ((1, set(ids(not_held_out(traces)))), (0, set())):
        moved = house.learner(target_version="8", target_max_age=age)
        moved.learn_once()
        assert {entry.trace.trace_id for entry in moved._state.replay_buffer} == left


def test_a_request_is_measured_over_all_its_traces_and_in_the_order_of_arrival(make_trace):
    first, second = make_trace(1), make_trace(2)
    later = replace(make_trace(3), request_id=first.request_id)
    found = served_by_request([first, second, later])
    expected = [
        (int(first.rounds.accepted.sum() + later.rounds.accepted.sum()), 8),
        (int(second.rounds.accepted.sum()), 4),
    ]
    assert [(tally.accepted, tally.rounds) for tally in found] == expected
