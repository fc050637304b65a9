"""Celery for real: a Redis, a worker process, its beat, one learning round."""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
import redis
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.keys import HEARTBEAT
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.learner.app import make_app, run_worker
from paceline.learner.claim.intake import is_held_out
from paceline.learner.config import LearnerConfig
from paceline.learner.worker import tasks
from paceline.learner.worker.tasks import LEARN_ROUND
from waiting import until


@pytest.fixture
def config(tiny_speculator: Any, tmp_path: Path, redis_url: str) -> LearnerConfig:
    return LearnerConfig(
        target="target",
        target_path=tiny_speculator.target,
        initial_draft=tiny_speculator.draft,
        redis_url=redis_url,
        target_version="1",
        data_dir=tmp_path / "data",
        mlflow_uri="http://127.0.0.1:9",
        name="test-0",
        min_new_traces=4,
        round_interval_s=1.0,
    )


@pytest.fixture
def environment(config: LearnerConfig) -> dict[str, str]:
    """What an operator would set for `config`."""
    given = {
        "PACELINE_TARGET": config.target,
        "PACELINE_TARGET_PATH": str(config.target_path),
        "PACELINE_DRAFT": str(config.initial_draft),
        "PACELINE_REDIS_URL": config.redis_url,
        "PACELINE_TARGET_VERSION": config.target_version,
        "PACELINE_DATA_DIR": str(config.data_dir),
        "PACELINE_MLFLOW_URI": config.mlflow_uri,
        "PACELINE_LEARNER": config.name,
        "PACELINE_MIN_NEW_TRACES": str(config.min_new_traces),
        "PACELINE_ROUND_INTERVAL_S": str(config.round_interval_s),
    }
    return {**os.environ, **given, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[IO[str]]:
    """What a process writes, line by line; at the end it gets SIGTERM, and must exit with 0."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
    assert process.returncode == 0


@pytest.mark.guarantee("silent-learner")
def test_a_worker_with_beat_is_alive_before_its_first_round_learns_from_redis_and_says_when_it_ends(
    config: LearnerConfig, environment: dict[str, str], tiny_speculator: Any, redis_client: redis.Redis
) -> None:
    buffer, board = (kind(redis_client, BufferConfig()) for kind in (RedisTraceBuffer, RedisVersionBoard))
    code = "from paceline.learner import app, config; app.run_worker(config.from_env(), beat=True)"
    kept = sum(is_held_out(f"request-{i}", config.holdout_share) for i in range(40))
    log: list[str] = []

    def read_until(text: str, lines: IO[str]) -> None:
        while text not in "".join(log[-1:]):
            log.append(next(lines))
            assert len(log) < 500, "".join(log)

    with running([sys.executable, "-c", code], environment) as lines:
        until(lambda: "learner:test-0" in board.members(), "the first beat")
        first = board.members()["learner:test-0"]
        assert (first.is_alive, first.said.kind) == (True, "idle")
        until(lambda: board.members()["learner:test-0"].last_seen_at > first.last_seen_at, "the next beat")
        buffer.append([tiny_speculator.serve(i) for i in range(40)])
        read_until("learning round of default: learned", lines)
        read_until("learning round of default: idle, 0 traces pending", lines)
        # A status is kept for seconds, and a worker may take longer to end.
        until(
            lambda: board.heartbeats().get("learner:test-0", MemberStatus()).kind == "idle",
            "the status of an idle round",
        )
        beat = board.heartbeats()["learner:test-0"]
    assert board.members()["learner:test-0"].said.ended
    assert buffer.counts().acked == {"learned": 40 - kept, "held_out": kept}
    assert (beat.kind, beat.life.rounds, beat.life.traces["learned"]) == ("idle", 1, 40 - kept)
    assert [line for line in log if any(word in line for word in ("received", "succeeded in", "due task"))] == []
    # Messages that nobody took in time do not pile up.
    assert redis_client.llen(config.queue) <= 1


@pytest.mark.guarantee("asked-round")
@pytest.mark.guarantee("silent-learner")
def test_a_worker_without_beat_learns_few_traces_when_a_trainer_asks_and_is_silent_soon_after_a_kill(
    config: LearnerConfig, environment: dict[str, str], tiny_speculator: Any, redis_client: redis.Redis
) -> None:
    buffer, board = (kind(redis_client, BufferConfig()) for kind in (RedisTraceBuffer, RedisVersionBoard))
    code = "from paceline.learner import app, config; app.run_worker(config.from_env(), beat=False)"
    patient = environment | {"PACELINE_MIN_NEW_TRACES": "1000", "PACELINE_ROUND_INTERVAL_S": "60"}
    with subprocess.Popen([sys.executable, "-c", code], env=patient, stderr=subprocess.DEVNULL) as worker:
        try:
            for wave in range(2):
                buffer.append([tiny_speculator.serve(i) for i in range(3 * wave, 3 * wave + 3)])
                buffer.ask_for_round("trainer")
                until(lambda seen=3 * (wave + 1): sum(buffer.counts().acked.values()) == seen, "the asked round", 120.0)
            assert buffer.counts().pending == 0
            assert not buffer.take_ask()
            # A round acknowledges its traces before it ends.
            until(lambda: board.members()["learner:test-0"].said.kind != "learning", "the end of the round")
            assert not board.members()["learner:test-0"].said.ended
        finally:
            worker.kill()
    left_ms = redis_client.pttl(HEARTBEAT.name("default", "learner:test-0"))
    assert left_ms <= 15_000
    until(lambda: not board.members()["learner:test-0"].is_alive, "its silence")
    last = board.members()["learner:test-0"].said
    assert last.kind in {"learned", "idle"}
    assert not last.ended


def test_the_celery_command_finds_the_app_and_shows_its_one_task(environment: dict[str, str]) -> None:
    code = (
        "from paceline.learner import app; import sys; found = app.app; "
        "print(*sorted(n for n in found.tasks if not n.startswith('celery.')), found.conf.task_default_queue, "
        "'torch' in sys.modules, found is app.app)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    # Task and queue as release 0.1 named them: its beat starts the learning rounds of a later learner.
    assert done.stdout.split() == ["paceline.learn_round", "paceline.learn.default", "False", "True"]


@pytest.mark.guarantee("data-is-never-code")
def test_a_message_outlives_its_worker_and_is_never_a_pickle(config: LearnerConfig) -> None:
    app = make_app(config)
    conf = app.conf
    assert (conf.task_acks_late, conf.task_reject_on_worker_lost, conf.worker_prefetch_multiplier) == (True, True, 1)
    assert (conf.accept_content, conf.task_serializer, conf.result_backend) == (["json"], "json", None)
    assert conf.broker_transport_options["visibility_timeout"] > config.round_lease_s
    entry = conf.beat_schedule["learn"]
    assert (entry["task"], entry["schedule"].run_every.total_seconds()) == (LEARN_ROUND, 1.0)
    assert entry["options"] == {"queue": "paceline.learn.default", "expires": 1.0}


def test_a_learning_round_that_finds_redis_away_fails_once_and_is_not_retried(
    config: LearnerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Unlucky:
        def learn_once(self) -> None:
            asked.append(1)
            raise BufferUnavailable("gone")

    monkeypatch.setattr(tasks, "_learner", lambda _: Unlucky())
    done = make_app(config).tasks[LEARN_ROUND].apply()
    assert (done.state, str(done.result), len(asked)) == ("FAILURE", "gone", 1)


def test_a_worker_whose_redis_is_away_says_what_to_do(config: LearnerConfig) -> None:
    locked = replace(config, redis_url="redis://:hunter2@127.0.0.1:9/0")
    with pytest.raises(BufferUnavailable, match="start Redis or correct PACELINE_REDIS_URL") as caught:
        run_worker(locked, beat=False)
    assert "redis://127.0.0.1:9/0" in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_the_certificate_of_the_broker_is_verified(config: LearnerConfig) -> None:
    plain = make_app(config).connection()
    assert not plain.ssl
    with_tls = make_app(replace(config, redis_url="rediss://:secret@redis.example:6380/0")).connection()
    assert with_tls.ssl == {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
