"""A trainer asks for a learning round: it starts at once, with however few traces, and once. On a real Redis."""

import threading

import pytest
import redis
from kombu.exceptions import OperationalError
from learner_traffic import BATCH
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable, DeviceOutOfMemory
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.learner.round import loop
from paceline.learner.round.learning_report import LearningKind
from paceline.learner.training.trainer import DraftTrainer
from paceline.learner.worker import threads
from paceline.learner.worker.threads import follow_asks


@pytest.fixture
def asked_house(redis_client: redis.Redis, house):
    house.buffer = RedisTraceBuffer(redis_client, BufferConfig(), house.clock)
    return house


@pytest.mark.guarantee("asked-round")
def test_few_traces_are_learned_when_asked_and_once_per_ask(asked_house) -> None:
    house, learner = asked_house, asked_house.learner(max_wait_s=0.0, holdout_share=0.001)
    house.send(3)
    assert learner.learn_once().why == "3 traces pending, 8 needed"
    house.buffer.ask_for_round("trainer")
    report = learner.learn_once()
    why_now = "3 traces pending, 8 needed; a trainer asked for a learning round"
    assert (report.kind, report.why_now, sum(report.outcomes.values())) == (LearningKind.LEARNED, why_now, 3)
    house.send(3)
    assert learner.learn_once().why == "3 traces pending, 8 needed"


def test_an_ask_waits_for_the_first_trace(asked_house) -> None:
    house, learner = asked_house, asked_house.learner(max_wait_s=0.0, holdout_share=0.001)
    house.buffer.ask_for_round("trainer")
    assert learner.learn_once().why == "0 traces pending, 8 needed"
    house.send(1)
    assert learner.learn_once().kind is LearningKind.LEARNED


def test_a_round_that_was_due_anyway_answers_the_ask(asked_house) -> None:
    house, learner = asked_house, asked_house.learner(max_wait_s=0.0)
    house.send()
    house.buffer.ask_for_round("trainer")
    assert learner.learn_once().why_now == f"{BATCH} traces pending, 8 needed"
    house.send(2)
    assert learner.learn_once().why == "2 traces pending, 8 needed"


@pytest.mark.guarantee("asked-round")
@pytest.mark.parametrize(
    ("failure", "restarts", "rounds"),
    [(RuntimeError("a step"), False, 4), (RuntimeError("a step"), True, 4), (DeviceOutOfMemory("full"), False, 1)],
)
def test_an_asked_round_that_fails_is_tried_again_until_its_traces_are_learned(
    asked_house, monkeypatch, failure: Exception, restarts: bool, rounds: int
) -> None:
    def fail(*_: object) -> None:
        raise failure

    house, settings = asked_house, {"learn": "always", "min_new_traces": 10**6, "max_wait_s": 0.0}
    learner = house.learner(**settings)
    house.send(64)
    house.buffer.ask_for_round("trainer")
    with monkeypatch.context() as broken:
        broken.setattr(DraftTrainer, "fit", fail)
        with pytest.raises(type(failure)):
            learner.learn_once()
    if restarts:
        learner = house.learner(**settings)
    reports = [learner.learn_once() for _ in range(rounds)]
    assert {report.why_now.partition("; ")[2] for report in reports} == {
        "a learning round failed, and its traces are tried again"
    }
    assert sum(sum(report.outcomes.values()) for report in reports) == 64
    house.send(3)
    assert learner.learn_once().why == "3 traces pending, 1000000 needed"


def test_a_pause_does_not_forget_a_round_that_failed(asked_house, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise DeviceOutOfMemory("full")  # which accuses no trace

    house = asked_house
    learner = house.learner(learn="always", min_new_traces=10**6, max_wait_s=0.0)
    house.send(64)
    house.buffer.ask_for_round("trainer")
    with monkeypatch.context() as broken:
        broken.setattr(DraftTrainer, "fit", fail)
        with pytest.raises(DeviceOutOfMemory):
            learner.learn_once()
    with monkeypatch.context() as paused:
        paused.setattr(loop, "paused_by", lambda _: "replica:a")
        assert learner.learn_once().why == "paused by replica:a; traces wait"
    assert sum(learner.learn_once().outcomes.values()) == 64


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for traces, or for Redis."""
    monkeypatch.setattr(threads, "SETTLE_S", 0.0)
    monkeypatch.setattr(threads, "RETRY_S", 0.0)


def followed(buffer, answers: list[BaseException | None]) -> int:
    """How often a learning round was started until `answers`, one per start, were used up."""
    stop, started = threading.Event(), []

    def start_round() -> None:
        answer = answers[len(started)]
        started.append(answer)
        if len(started) == len(answers):
            stop.set()
        if answer is not None:
            raise answer

    follow_asks(buffer, start_round, stop)
    return len(started)


class Scripted:
    """A buffer whose asks are given beforehand; "" is a wait in vain."""

    def __init__(self, *asks: str | Exception) -> None:
        self._asks, self.after = iter(asks), []

    def wait_for_ask(self, after_id: str, _wait_s: float) -> str:
        self.after.append(after_id)
        ask = next(self._asks)
        if isinstance(ask, Exception):
            raise ask
        return ask


def test_the_follower_starts_one_round_per_ask_an_earlier_one_too(soon) -> None:
    buffer = Scripted("1", "", "", "2", "3")
    assert followed(buffer, [None, None, None]) == 3
    assert buffer.after == ["", "1", "1", "1", "2"]


def test_an_ask_is_answered_once_redis_is_back_and_told_of_once(soon, caplog) -> None:
    buffer = Scripted(
        BufferUnavailable("gone"), BufferUnavailable("gone"), "1", "1", "", BufferUnavailable("gone"), "2"
    )
    assert followed(buffer, [OperationalError("gone"), None, None]) == 3
    assert buffer.after == ["", "", "", "", "1", "1", "1"]
    assert len([line for line in caplog.messages if "asks for learning rounds are not seen" in line]) == 2
