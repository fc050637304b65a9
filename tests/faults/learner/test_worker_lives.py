"""The real Celery worker with its beat: Redis, its broker too, dies and begins anew; clocks are set."""

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
def worker(frail_house, tmp_path):
    """`paceline learn`; it must stop in good order when it is asked to."""
    env = {**os.environ, **frail_house.env, "PACELINE_ROUND_INTERVAL_S": "1", "OMP_NUM_THREADS": "1"}
    with (
        (tmp_path / "worker.log").open("w") as log,
        subprocess.Popen([sys.executable, "-c", WORK], env=env, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        yield process
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, (tmp_path / "worker.log").read_text()


@pytest.mark.guarantee("broker-killed")
def test_a_worker_outlives_its_broker_and_the_board(frail_house, frail_redis, worker):
    house = frail_house
    house.send(BATCH)
    until(lambda: not house.buffer.counts().pending, "everything to be learned")
    frail_redis.die()
    frail_redis.come_back(with_data=False)
    new = house.send(BATCH)
    until(lambda: not house.buffer.counts().pending, "everything to be learned")
    house.assert_accounted(new)
    house.assert_sound()
    assert worker.poll() is None


@pytest.mark.guarantee("beat-clock-jumps")
@pytest.mark.parametrize("days", [1, -1], ids=["forwards", "backwards"])
def test_the_beat_starts_the_next_round_in_time_whatever_the_clock_says(house, monkeypatch, days):
    app = make_app(from_env(house.env | {"PACELINE_ROUND_INTERVAL_S": "30"}))
    entry = Scheduler(app).schedule["learn"]
    now = Celery.now
    monkeypatch.setattr(Celery, "now", lambda self: now(self) + timedelta(days=days))
    is_due, wait_s = entry.is_due()
    assert not is_due
    assert 0 < wait_s <= 30
