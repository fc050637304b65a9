"""The real Celery worker with its beat: Redis, which is also its broker, dies and comes back; clocks are set."""

import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from celery import Celery
from celery.beat import Scheduler
from paceline.learner.app import make_app
from paceline.learner.config import from_env
from waiting import until

BATCH = 16
WORK = "from paceline.learner import app, config; app.run_worker(config.from_env(), beat=True)"


@pytest.fixture
def worker(own_world, tmp_path):
    """`paceline learn`; it must shut down cleanly when asked to."""
    env = {**os.environ, **own_world.env, "PACELINE_ROUND_INTERVAL_S": "1", "OMP_NUM_THREADS": "1"}
    with (
        (tmp_path / "worker.log").open("w") as log,
        subprocess.Popen([sys.executable, "-c", WORK], env=env, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        yield process
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, (tmp_path / "worker.log").read_text()


@pytest.mark.guarantee("broker-killed")
def test_a_worker_outlives_its_broker_and_the_board(own_world, killable_redis, worker):
    world = own_world
    world.send(BATCH)
    until(lambda: not world.buffer.counts().pending, "everything to be learned")
    killable_redis.die()
    killable_redis.come_back(with_data=False)
    new = world.send(BATCH)
    until(lambda: not world.buffer.counts().pending, "everything to be learned")
    world.assert_accounted(new)
    world.assert_sound()
    assert worker.poll() is None


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
