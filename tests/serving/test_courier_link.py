"""The line between scheduler and courier: in order, bounded by bytes, and a dead courier is replaced."""

import os
import signal

import numpy as np
import pytest
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_board import RedisVersionBoard
from paceline.buffer.redis_stream import RedisTraceBuffer
from paceline.buffer.trace import Sampling, VerdictRule
from paceline.serving import config
from paceline.serving.breaker import Breaker
from paceline.serving.capture.courier_process import CourierProcess
from paceline.serving.capture.courier_sender import MAX_RUNNING, CourierSender
from paceline.serving.courier.receiver import CourierReceiver
from paceline.serving.wire.messages import (
    BEST_IDS,
    FEATURES,
    READ_IDS,
    VERDICTS,
    PrefillHead,
    Resume,
    VerifyHead,
    to_wire,
)
from paceline.serving.wire.request_forward import Commit, RequestFacts
from paceline.serving.wire.teacher_width import TeacherWidth
from waiting import until

FACTS = RequestFacts("", Sampling(), VerdictRule.GREEDY)


def prefill(name):
    arrays = {READ_IDS: np.arange(3, dtype=np.int32), FEATURES: np.zeros((3, 4), np.float32)}
    return to_wire(PrefillHead((name,), 0, (Commit(0, (7,), ""),), (FACTS,), ((0, 0, 3),)), arrays)


def verify(name, finish="length"):
    arrays = {
        VERDICTS: np.asarray([[7, 8, 9, 3, 2]], np.int32),
        FEATURES: np.zeros((2, 4), np.float32),
        BEST_IDS: np.zeros((1, 3), np.int32),
    }
    return to_wire(VerifyHead((name,), 0, (Commit(1, (8, 5), finish),), (True,)), arrays)


@pytest.fixture
def endpoint(tmp_path):
    return f"ipc://{tmp_path}/line"


@pytest.fixture
def line(endpoint):
    """Both ends in one process."""
    resumed = []
    link, inlet = CourierSender(endpoint, 4000), CourierReceiver(endpoint, TeacherWidth(1, 1), resumed.append)
    yield link, inlet, resumed
    link.close()
    inlet.close()


def taken(inlet, count):
    """Wait for `count` forwards; with them, who was lost."""
    forwards, lost = [], set()
    for _ in range(2000):
        more, gone = inlet.take(0.005)
        forwards, lost = forwards + more, lost | gone
        if len(forwards) >= count:
            return [forward.request_ids[0] for forward in forwards], lost
    pytest.fail(f"got {len(forwards)} forwards, expected {count}")


def test_forwards_arrive_in_order_with_the_status(line):
    link, inlet, _ = line
    for name in "abc":
        assert link.offer([prefill(name)])
    link.tell({"draft_version": 5})
    assert link.offer([prefill("d")])
    assert taken(inlet, 4) == (["a", "b", "c", "d"], set())
    assert inlet.status == {"draft_version": 5}


def test_a_full_line_loses_whole_forwards_says_whose_and_recovers_when_it_was_read(line):
    link, inlet, _ = line
    fates = [link.offer([prefill(f"r{i}")]) for i in range(60)]
    fits = fates.index(False)
    assert 5 < fits < 60
    assert not any(fates[fits:])
    assert taken(inlet, fits) == ([f"r{i}" for i in range(fits)], set())
    inlet.acknowledge({})
    tries = next(n for n in range(100_000) if link.offer([prefill(f"late-{n}")]))  # the receipt takes its time
    refused = {f"r{i}" for i in range(fits, 60)} | {f"late-{n}" for n in range(tries)}
    assert taken(inlet, 1) == ([f"late-{tries}"], refused)


def test_what_was_marked_as_lost_goes_with_the_next_letter(line):
    link, inlet, _ = line
    link.lose(["gone"])
    link.offer([prefill("a")])
    link.offer([prefill("b")])
    assert taken(inlet, 2) == (["a", "b"], {"gone"})


def test_the_next_courier_hears_where_the_last_one_stood(line):
    link, inlet, resumed = line
    assert link.offer([prefill("running"), prefill("ended"), verify("ended")])
    assert taken(inlet, 3)[1] == set()
    inlet.acknowledge({"captured": 2})
    for _ in range(2000):
        link.tell({})
        if link._receipt is not None:
            break
        inlet.take(0.005)
    link.offer([prefill("unseen")])  # behind the receipt, and ended before the death: only the link knows of it
    link.offer([verify("unseen")])
    link.resume()
    link.offer([prefill("next")])
    names = []
    while "next" not in names:  # what waited on the old line may have come through or not
        names += taken(inlet, 1)[0]
    assert resumed == [Resume({"captured": 2}, ("running",), 1)]


def test_requests_that_never_say_that_they_ended_are_forgotten_at_last(line):
    link, _, _ = line
    for number in range(MAX_RUNNING + 3):
        link._follow(prefill(f"r{number}").head)
    assert len(link._running) == MAX_RUNNING
    assert "r2" not in link._running
    assert f"r{MAX_RUNNING + 2}" in link._running


def settings_for(redis_url):
    return config.ServingConfig(redis_url, BufferConfig(), replica="rep")


@pytest.fixture
def courier(redis_url, redis_client, monkeypatch):
    monkeypatch.setenv("PACELINE_REDIS_URL", redis_url)
    process = CourierProcess(settings_for(redis_url), Breaker(), lambda: {"draft_version": 7}, lambda: False)
    process._spawn()  # without the watch: the test looks after it itself
    yield process
    process.stop()


def test_a_courier_killed_at_work_is_replaced_and_every_trace_is_accounted_for(courier, redis_client):
    buffer, board = RedisTraceBuffer(redis_client, BufferConfig()), RedisVersionBoard(redis_client, BufferConfig())

    def reading():
        courier.look()
        return board.heartbeats().get("replica:rep", {})

    for name in ("a", "b"):
        courier.link.offer([prefill(name)])
    courier.link.offer([verify("a")])
    until(lambda: reading().get("delivered") == 1, "the first trace")
    assert (reading()["captured"], reading()["draft_version"]) == (2, 7)
    dead = courier._process.pid
    os.kill(dead, signal.SIGKILL)
    courier._process.wait()
    courier.look()
    assert courier._process.pid != dead
    courier.link.offer([verify("b")])  # its beginning died with the courier
    courier.link.offer([prefill("c")])
    courier.link.offer([verify("c")])
    until(lambda: reading().get("delivered") == 2, "the trace behind the death")
    told = reading()
    assert (told["captured"], told["dropped"], told["open"], told["courier_restarts"]) == (3, {"courier_died": 1}, 0, 1)
    assert [entry.trace.request_id for entry in buffer.claim("c", 9)] == ["a", "c"]


def test_what_died_with_a_whole_server_is_counted_by_the_next_one(courier, redis_url, redis_client):
    board = RedisVersionBoard(redis_client, BufferConfig())

    def reading(of):
        of.look()
        return board.heartbeats().get("replica:rep", {})

    courier.link.offer([prefill("a"), prefill("b"), verify("a")])
    until(lambda: (reading(courier).get("delivered"), reading(courier).get("open")) == (1, 1), "the first trace")
    courier._process.kill()
    courier._process.wait()
    successor = CourierProcess(settings_for(redis_url), Breaker(), lambda: {"draft_version": 8}, lambda: False)
    successor._spawn()
    try:
        until(lambda: reading(successor).get("draft_version") == 8, "the next server's first word")
        told = reading(successor)
    finally:
        successor.stop()
    assert (told["captured"], told["delivered"], told["dropped"]) == (2, 1, {"server_died": 1})
