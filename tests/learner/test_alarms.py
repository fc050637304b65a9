"""What keeps a learner from learning: replay that differs from what was served, a replica that asks it to wait."""

import pytest
from paceline.buffer.board.member_status import MemberStatus
from paceline.learner.judging.alarms import gap_alarm, paused_by, rest_for
from paceline.learner.judging.calibration import Calibration, compare_with_served
from paceline.learner.round.learning_report import LearningKind
from paceline.policies.guard import AlarmName
from paceline.policies.learn_schedule import LearnChoice
from paceline.policies.verdict_words import sentence

PAUSED = MemberStatus(learning_paused="swap_without_effect: weights in the server are aa, published were bb")


@pytest.mark.parametrize(
    ("calibration", "is_raised"),
    [
        (Calibration(equal=290, compared=300, accepted=300, excess=-9), True),
        (Calibration(equal=290, compared=300, accepted=300, excess=9), True),
        (Calibration(equal=290, compared=300, accepted=300, excess=5), False),
        (Calibration(equal=0, compared=199, accepted=300, excess=-150), False),  # too few rounds to decide
        (Calibration(), False),
    ],
)
def test_a_gap_needs_rounds_and_size(calibration, is_raised):
    assert (gap_alarm(calibration) is not None) == is_raised


def test_an_alarm_becomes_a_decision_to_rest_with_its_figures():
    alarm = gap_alarm(Calibration(equal=0, compared=300, accepted=300, excess=-150))
    assert alarm.name is AlarmName.CALIBRATION_GAP
    decision = rest_for(alarm)
    said = "traces set aside: calibration_gap; served 2.000, replayed 1.500 over 300 rounds"
    assert (decision.choice, sentence(decision.reason)) == (LearnChoice.REST, said)


@pytest.mark.parametrize(
    ("heartbeats", "why"),
    [
        ({}, ""),
        ({"replica:a": MemberStatus(), "replica:b": MemberStatus(learning_paused="")}, ""),
        ({"learner:x": PAUSED}, ""),
        ({"replica:b": PAUSED, "replica:a": MemberStatus()}, f"replica:b: {PAUSED.learning_paused}"),
    ],
)
def test_only_replicas_pause_learning(heartbeats, why):
    assert paused_by(heartbeats) == why


@pytest.mark.guarantee("learning-paused")
def test_traces_wait_while_a_replica_asks_for_it_and_are_learned_afterwards(house):
    learner = house.learner()
    house.send()
    house.board.beat("replica:a", PAUSED, 60.0)
    report = learner.learn_once()
    assert (report.kind, report.why[:20]) == (LearningKind.IDLE, "paused by replica:a:")
    assert (house.buffer.counts().pending, house.fitted) == (24, [])
    house.board.beat("replica:a", MemberStatus(learning_paused=""), 60.0)
    assert learner.learn_once().kind is LearningKind.LEARNED


@pytest.mark.guarantee("alarm-calibration-gap")
def test_traces_that_replay_otherwise_than_they_were_served_are_set_aside_for_good(house, monkeypatch):
    gap = Calibration(equal=0, compared=300, accepted=300, excess=55)
    monkeypatch.setattr("paceline.learner.state.learner_state.compare_with_served", lambda *_: gap)
    bad = house.send()
    report = house.learner().learn_once()
    assert (report.kind, report.alarm.name, dict(report.outcomes)) == (
        LearningKind.RESTED,
        AlarmName.CALIBRATION_GAP,
        {"misreplayed": 24},
    )
    (alarm,) = house.board.heartbeats()[f"learner:{house.config.name}"].standing_alarms
    assert (alarm.name, alarm.action) == ("calibration_gap", "pause_learning")
    monkeypatch.setattr("paceline.learner.state.learner_state.compare_with_served", compare_with_served)
    learner = house.learner()  # reads back what the stream holds
    for _ in range(2):
        house.send()
        assert learner.learn_once().kind is LearningKind.LEARNED
    names = {trace.trace_id for trace in bad}
    assert names.isdisjoint(name for fit in [*house.fitted, *house.replayed] for name in fit)
    assert house.board.heartbeats()[f"learner:{house.config.name}"].standing_alarms == []


def test_killed_before_they_are_acked_they_are_still_set_aside_once(house, monkeypatch):
    gap = Calibration(equal=0, compared=300, accepted=300, excess=55)

    def killed(*_):
        raise KeyboardInterrupt

    house.send()
    with monkeypatch.context() as patched:
        patched.setattr("paceline.learner.state.learner_state.compare_with_served", lambda *_: gap)
        patched.setattr(house.buffer, "ack", killed)
        with pytest.raises(KeyboardInterrupt):
            house.learner().learn_once()
    house.let_claims_lapse()
    restarted = house.learner()
    assert restarted.learn_once().kind is LearningKind.IDLE
    counts = house.buffer.counts()
    assert (counts.acked, counts.pending, house.fitted) == ({"misreplayed": 24}, 0, [])
    assert restarted._state.notes.compared == 300
