"""Alarms from what the scheduler process reports: a hook that fell silent, a swap that changed nothing."""

from types import SimpleNamespace

import pytest
from paceline.buffer.board.member_status import GoodputSaid, MemberStatus, PacingSaid
from paceline.policies.guard import AlarmName, GuardLimits
from paceline.policies.verdict_words import alarm_sentence
from paceline.serving.capture.engine_rounds import EngineRounds
from paceline.serving.pacing.goodput_tally import GoodputTally
from paceline.serving.watch.engine_monitor import EngineMonitor
from said import said_by

LIMITS = GuardLimits(min_rounds=100)


def names(monitor):
    return [alarm.name for alarm in said_by(monitor).standing_alarms]


def reported(engine, captured, **more):
    return MemberStatus(engine_rounds=engine, captured_rounds=captured, **more)


@pytest.mark.guarantee("alarm-hook-silent")
def test_rounds_that_the_engine_counts_and_nobody_captures_raise_the_alarm_once(caplog):
    monitor = EngineMonitor(LIMITS)
    for engine, captured in ((500, 490), (599, 490), (600, 490), (650, 490)):
        monitor.turn(reported(engine, captured))
    # 500 was when a round was captured last, so at 600 a hundred are missing.
    assert names(monitor) == [AlarmName.HOOK_SILENT]
    assert said_by(monitor).standing_alarms[0].figures == {"rounds": 150}
    assert caplog.text.count("alarm hook_silent") == 1
    monitor.turn(reported(660, 491))
    assert names(monitor) == []


@pytest.mark.parametrize(
    "status", [MemberStatus(), reported(599, 490), reported(5000, 490, capture_reason="off for another reason")]
)
def test_no_alarm_without_a_hundred_rounds_or_while_capture_is_off_anyway(status):
    monitor = EngineMonitor(LIMITS)
    monitor.turn(reported(500, 490))
    monitor.turn(status)
    assert names(monitor) == []


@pytest.mark.guarantee("alarm-swap-without-effect")
def test_a_swap_without_effect_is_an_active_alarm_and_pauses_learning_until_the_weights_are_there():
    monitor = EngineMonitor(LIMITS)
    monitor.turn(MemberStatus(published_sha256="b" * 64, loaded_sha256="a" * 64))
    assert names(monitor) == [AlarmName.SWAP_WITHOUT_EFFECT]
    assert said_by(monitor).learning_paused == (
        f"swap_without_effect: weights in the server are {'a' * 12}, published were {'b' * 12}"
    )
    monitor.turn(MemberStatus(published_sha256="b" * 64, loaded_sha256="b" * 64))
    assert said_by(monitor) == MemberStatus()


def test_a_silent_hook_does_not_pause_learning():
    monitor = EngineMonitor(LIMITS)
    monitor.turn(reported(100, 0))
    assert names(monitor) == [AlarmName.HOOK_SILENT]
    assert said_by(monitor).learning_paused == ""


def request(rid, rounds):
    return SimpleNamespace(rid=rid, spec_verify_ct=rounds)


def test_the_engines_rounds_are_added_up_over_requests_that_come_and_go():
    rounds = EngineRounds(lambda req: req.rid != "opted-out")
    looks = [
        [request("a", 3), request("opted-out", 50)],  # 3
        [request("a", 7), request("b", 2)],  # 4 + 2
        [request("b", 2)],  # 0
        [request("b", 6), request("a", 9)],  # 4 + 2: retracted in between, it comes back with all its rounds
        [request("b", 1)],  # another request under the same id: its rounds are counted from here on
        [request("b", 4)],  # 3
        [],
    ]
    assert [rounds.look(look) for look in looks] == [3, 9, 9, 15, 15, 18, 18]


@pytest.mark.guarantee("alarm-slower-than-plain")
def test_drafts_that_do_not_pay_are_reported_where_they_pay_least():
    tally = GoodputTally()
    for bucket, draft_steps, tokens, cost_ms, times in (
        (1, 0, 1, 10.0, 60),  # 100 tokens/s
        (1, 3, 2, 16.0, 60),  # 125
        (1, 5, 9, 1.0, 59),  # ran less often: not looked at
        (4, 0, 4, 20.0, 60),  # 200
        (4, 2, 5, 30.0, 55),  # 166.7
        (5, 0, 5, 10.0, 60),
        (5, 3, 1, 10.0, 49),  # far worse, but too few steps to judge
        (9, 3, 1, 1.0, 60),  # never without drafts
    ):
        for _ in range(times):
            tally.add(bucket, draft_steps, tokens, cost_ms)
    assert tally.said() == [
        GoodputSaid(bucket=1, tokens_per_s=125.0, plain_tokens_per_s=100.0, steps=60),
        GoodputSaid(bucket=4, tokens_per_s=pytest.approx(500 / 3), plain_tokens_per_s=200.0, steps=55),
        GoodputSaid(bucket=5, tokens_per_s=100.0, plain_tokens_per_s=500.0, steps=49),
    ]
    monitor = EngineMonitor()
    monitor.turn(MemberStatus(pacing=PacingSaid(goodput=tally.said())))
    (alarm,) = said_by(monitor).standing_alarms
    assert (alarm.name, alarm.action) == (AlarmName.SLOWER_THAN_PLAIN, "speculation_off")
    assert alarm_sentence(alarm.name, alarm.figures) == "166.7 tokens/s with speculation, 200.0 without, 55 steps"
    monitor.turn(MemberStatus(pacing=PacingSaid(policy="off", reason="not asked for")))
    assert names(monitor) == []
