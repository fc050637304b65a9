"""A quiet server: a learning round starts once a trace has waited long enough. On a real Redis, by a test's clock."""

import logging

import pytest
import redis
from learner_traffic import BATCH, ids
from paceline.buffer.config import BufferConfig
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.learner.round.learning_report import LearningKind


@pytest.fixture
def quiet_house(redis_client: redis.Redis, house):
    """A house whose buffer is in Redis; its clock dates entries and tells how long they have waited."""
    house.buffer = RedisTraceBuffer(redis_client, BufferConfig(), house.clock)
    return house


def test_few_traces_are_learned_once_the_oldest_has_waited_long_enough(quiet_house, caplog) -> None:
    house, learner = quiet_house, quiet_house.learner()
    caplog.set_level(logging.INFO)
    house.send(2)
    for waited_s in (0.0, 300.0, 299.999):
        house.clock.now += waited_s
        report = learner.learn_once()
        assert (report.kind, report.why, report.why_now) == (LearningKind.IDLE, "2 traces pending, 8 needed", "")
    house.send(1)
    house.clock.now += 0.001
    report = learner.learn_once()
    why_now = "3 traces pending, 8 needed; the oldest has waited 600 s, at most 600 s"
    assert (report.kind, report.why_now) == (LearningKind.LEARNED, why_now)
    assert (sum(report.outcomes.values()), house.buffer.counts().pending) == (3, 0)
    assert house.board.heartbeats()[f"learner:{house.config.name}"].why_now == why_now
    assert f"learning round starts: {why_now}" in caplog.messages
    assert learner.learn_once().why == "0 traces pending, 8 needed"


def test_one_trace_is_enough_and_its_wait_begins_with_its_own_arrival(quiet_house) -> None:
    house, learner = quiet_house, quiet_house.learner(max_wait_s=60.0, holdout_share=0.001)
    for _ in range(2):
        house.clock.now += 1000.0
        (trace,) = house.send(1)
        house.clock.now += 59.0
        assert learner.learn_once().why == "1 traces pending, 8 needed"
        house.clock.now += 1.0
        assert learner.learn_once().kind is LearningKind.LEARNED
        assert house.fitted[-1] == ids([trace])


def test_traces_that_a_failed_learning_round_left_have_waited_since_they_came(quiet_house) -> None:
    house = quiet_house
    house.send(2)
    assert len(house.buffer.claim(house.config.name, 9)) == 2  # by a learner that died then
    house.buffer = RedisTraceBuffer(house.buffer._client, BufferConfig(), house.clock)  # as its next process has it
    house.clock.now += 600.0
    report = house.learner().learn_once()
    assert (report.kind, sum(report.outcomes.values())) == (LearningKind.LEARNED, 2)


def test_with_a_limit_of_0_no_wait_starts_a_learning_round(quiet_house) -> None:
    house, learner = quiet_house, quiet_house.learner(max_wait_s=0.0)
    house.send(7)
    house.clock.now += 86_000.0
    assert learner.learn_once().why == "7 traces pending, 8 needed"
    assert house.fitted == []


def test_enough_traces_wait_for_nothing(quiet_house) -> None:
    quiet_house.send()
    assert quiet_house.learner().learn_once().why_now == f"{BATCH} traces pending, 8 needed"
