"""The real Celery worker with its beat: Redis, its broker too, dies or refuses, and is well again; clocks are set."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from datetime import timedelta

import psutil
import pytest
from celery import Celery
from celery.beat import Scheduler
from paceline.buffer.errors import BufferUnavailable
from paceline.learner.app import make_app
from paceline.learner.config import from_env
from paceline.rig.sentinels import redis_behind_sentinels
from waiting import until

BATCH = 16
QUEUE = "paceline.learn.default"
ON_RANKS = "from paceline.learner import ranks; ranks.launch(2, beat=True)"
WORK = "from paceline.learner import app, config; app.run_worker(config.from_env(), beat=True)"


@contextmanager
def working(world, folder, work=WORK, ends_with=0):
    """`paceline learn` on a world; it must shut down cleanly when asked to."""
    env = {**os.environ, **world.env, "PACELINE_ROUND_INTERVAL_S": "1", "OMP_NUM_THREADS": "1"}
    with (
        (folder / "worker.log").open("w") as log,
        subprocess.Popen([sys.executable, "-c", work], env=env, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        except BaseException:  # Popen waits for it without a limit, and a failed test must end
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            raise
        process.send_signal(signal.SIGTERM)
    assert process.returncode == ends_with, (folder / "worker.log").read_text()


@pytest.fixture
def worker(own_world, tmp_path):
    with working(own_world, tmp_path) as process:
        yield process


def rank_of(torchrun, number):
    """The process of one rank, by the environment that torchrun gave it."""
    found = [child for child in psutil.Process(torchrun.pid).children() if child.environ().get("RANK") == str(number)]
    return found[0] if found else None


@pytest.mark.fault_matrix
@pytest.mark.guarantee("rank-killed")
def test_a_killed_rank_costs_a_learning_round_and_nothing_else(own_world, tmp_path):
    world = own_world
    with working(world, tmp_path, ON_RANKS, ends_with=1) as process:  # torchrun's own way to end by a signal
        world.send(BATCH)
        until(lambda: not world.buffer.counts().pending, "everything to be learned")
        follower = rank_of(process, 1)
        follower.kill()
        world.send(BATCH)
        until(lambda: not world.buffer.counts().pending, "everything to be learned by new ranks")
        assert rank_of(process, 1) not in {None, follower}
        world.assert_accounted(world.sent)
        world.assert_sound()


@pytest.mark.guarantee("redis-sentinel")
def test_a_worker_and_its_broker_follow_a_fail_over(build_world, tmp_path):
    def is_all_learnt():
        with suppress(BufferUnavailable):
            return not world.buffer.counts().pending

    with redis_behind_sentinels(tmp_path / "redis") as fleet:
        world = build_world(fleet.url)
        with working(world, tmp_path) as process:
            world.send(BATCH)
            until(is_all_learnt, "everything to be learned")
            assert world.client.wait(1, 10_000) == 1
            fleet.primary.kill()
            until(lambda: is_all_learnt() is not None, "the replica to take over")
            world.send(BATCH)
            until(is_all_learnt, "what came after the fail-over to be learned")
            world.assert_accounted(world.sent)
            world.assert_sound()
            assert process.poll() is None


#: What makes Redis refuse what Celery or paceline asks of it, and what ends that.
REFUSALS = {
    "no memory": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    "read only": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    "too few replicas": (
        ("CONFIG", "SET", "min-replicas-to-write", "1"),
        ("CONFIG", "SET", "min-replicas-to-write", "0"),
    ),
    "no permission": (
        ("ACL", "SETUSER", "default", "-zrem", "-zadd", "-lpush"),
        ("ACL", "SETUSER", "default", "+@all"),
    ),
    "another type": (
        ("SET", QUEUE, "x"),
        ("DEL", QUEUE),
    ),
}


@pytest.mark.guarantee("broker-killed")
@pytest.mark.guarantee("redis-refuses")
def test_a_worker_outlasts_what_redis_refuses_and_outlives_its_broker_and_the_board(
    own_world, killable_redis, worker, tmp_path
):
    world = own_world
    refused = []

    def complaints():
        return (tmp_path / "worker.log").read_text().count("no learning round was started")

    for name, (break_it, mend_it) in REFUSALS.items():
        world.send(BATCH)
        until(lambda: not world.buffer.counts().pending, f"everything to be learned before {name}")
        before = complaints()
        if break_it[0] == "SET":
            world.client.delete(QUEUE)
        world.client.execute_command(*break_it)
        until(lambda before=before: complaints() > before, f"a refusal for {name}")
        refused.append(name)
        if name == "no permission":  # beats can be written, and say so
            until(lambda: "lpush" in world.board.members()["learner:killable"].said.stalled, "the learner to tell")
        world.client.execute_command(*mend_it)
    world.send(BATCH)
    until(lambda: not world.buffer.counts().pending, "everything to be learned")
    until(lambda: world.board.members()["learner:killable"].said.stalled == "", "the learner to be well")
    world.assert_accounted(world.sent)
    world.assert_sound()
    assert refused == [*REFUSALS]
    killable_redis.die()
    killable_redis.come_back(with_data=False)
    new = world.send(BATCH)
    until(lambda: not world.buffer.counts().pending, "everything to be learned on the new board")
    world.assert_accounted(new)
    world.assert_sound()
    assert worker.poll() is None


FAILING = f"""
from paceline.learner.worker import lasting_worker
def fail(self): raise RuntimeError("nothing that passes")
lasting_worker.LastingConsumer.on_ready = fail
{WORK}
"""


@pytest.mark.guarantee("alarm-learner-left")
def test_a_worker_that_ends_by_itself_says_why_and_exits_with_a_code(world):
    env = {**os.environ, **world.env, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", FAILING], env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    said = world.board.members()["learner:killable"].said
    assert said.left == "RuntimeError: nothing that passes, exit code 1"
    assert not said.ended


@pytest.mark.guarantee("beat-clock-jumps")
@pytest.mark.parametrize("days", [1, -1], ids=["forwards", "backwards"])
def test_the_beat_starts_the_next_round_in_time_whatever_the_clock_says(world, monkeypatch, days):
    app = make_app(from_env(world.env | {"PACELINE_ROUND_INTERVAL_S": "30"}))
    entry = Scheduler(app).schedule["learn"]
    now = Celery.now
    monkeypatch.setattr(Celery, "now", lambda self: now(self) + timedelta(days=days))
    is_due, wait_s = entry.is_due()
    assert not is_due
    assert 0 < wait_s <= 30
