"""Courier and learner as processes, through TLS, with the users that docs/faults.md gives them."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_client import connect
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.learner.claim.intake import is_held_out
from paceline.serving import config
from paceline.serving.breaker import Breaker
from paceline.serving.capture.courier_process import CourierProcess
from waiting import until

TRACES, SHARE, DEADLINE_S = 40, 0.25, 120
FAULTS = Path(__file__).parents[2] / "docs" / "faults.md"
WORKER = "from paceline.learner import app, config; app.run_worker(config.from_env(), beat=True)"


@contextmanager
def courier_at(url, monkeypatch, tmp_path):
    """A courier process that was given `url`, and what it wrote to its standard error."""
    monkeypatch.setenv("PACELINE_REDIS_URL", url)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    logged = (tmp_path / "courier.log").open("w+")
    kept = os.dup(2)
    os.dup2(logged.fileno(), 2)  # the courier inherits it
    try:
        settings = config.from_env({**os.environ, "PACELINE_REPLICA": "rep"})
        process = CourierProcess(
            settings,
            "boot",
            breaker=Breaker(),
            status=lambda: MemberStatus(draft_version=7),
            is_canary_out=lambda: False,
        )
        process.start()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    try:
        yield lambda: Path(logged.name).read_text()
    finally:
        process.stop()
        logged.close()


@pytest.mark.guarantee("redis-tls")
def test_a_courier_reaches_redis_through_tls(secure_redis, monkeypatch, tmp_path):
    with (
        courier_at(secure_redis.url, monkeypatch, tmp_path) as logged,
        connect(secure_redis.url, secure_redis.ca, timeout_s=30.0) as client,
    ):
        board = RedisVersionBoard(client, BufferConfig())
        until(
            lambda: board.heartbeats().get("replica:rep", MemberStatus()).draft_version == 7, "the courier's heartbeat"
        )
        assert board.heartbeats()["replica:rep"].capture == "on"
        assert "s3cret" not in logged()


@pytest.mark.parametrize(
    ("fault", "text"), [("password", "check user and password"), ("certificate", "CERTIFICATE_VERIFY_FAILED")]
)
def test_a_courier_that_redis_refuses_logs_why_and_waits(secure_redis, monkeypatch, tmp_path, fault, text):
    url = secure_redis.url
    if fault == "password":
        url = url.replace("s3cret", "wrongs3cret")
    else:
        monkeypatch.setenv("PACELINE_REDIS_CA", str(secure_redis.other_ca))
    with courier_at(url, monkeypatch, tmp_path) as logged:
        until(lambda: text in logged(), f"the courier to log {text!r}")
        assert "s3cret" not in logged()


@pytest.fixture
def learner(tiny_speculator, tmp_path, secure_redis):
    """The environment that an operator would set."""
    given = {
        "PACELINE_TARGET": "target",
        "PACELINE_TARGET_PATH": str(tiny_speculator.target),
        "PACELINE_DRAFT": str(tiny_speculator.draft),
        "PACELINE_REDIS_URL": secure_redis.of("learner"),
        "PACELINE_TARGET_VERSION": "1",
        "PACELINE_DATA_DIR": str(tmp_path / "data"),
        "PACELINE_MLFLOW_URI": "http://127.0.0.1:9",  # nothing listens there: versions wait to be registered
        "PACELINE_LEARNER": "test-0",
        "PACELINE_MIN_NEW_TRACES": "4",
        "PACELINE_HOLDOUT_SHARE": str(SHARE),
        "PACELINE_ROUND_INTERVAL_S": "1.0",
        "OMP_NUM_THREADS": "1",
    }
    return {**os.environ, **given}


@pytest.mark.guarantee("redis-tls")
def test_a_worker_with_beat_learns_a_round_through_tls_and_its_log_hides_the_password(
    secure_redis, learner, tiny_speculator
):
    held_out = sum(is_held_out(f"request-{i}", SHARE) for i in range(TRACES))
    with connect(secure_redis.url, secure_redis.ca, timeout_s=30.0) as client:
        buffer = RedisTraceBuffer(client, BufferConfig())
        buffer.append([tiny_speculator.serve(i) for i in range(TRACES)])
        log = worked_until("round of default: learned", learner)
        assert buffer.counts().acked == {"learned": TRACES - held_out, "held_out": held_out}, log
    assert "s3cret" not in log


def worked_until(text, env):
    """Run a worker until its log contains `text`; return the log. Tried again as `refused` is."""
    for _ in range(5):
        code, log = worked_once(text, env)
        if "Timeout connecting" not in log:
            break
    assert text in log, log
    assert code == 0, log
    return log


def worked_once(text, env):
    log = []
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as worker:
        deadline = threading.Timer(DEADLINE_S, worker.kill)
        deadline.start()
        for line in worker.stdout:
            log.append(line)
            if text in line:
                worker.send_signal(signal.SIGTERM)
        deadline.cancel()
    return worker.returncode, "".join(log)


@pytest.mark.parametrize("fault", ["password", "certificate"])
def test_a_worker_that_redis_refuses_ends_at_once_and_says_why(secure_redis, learner, fault):
    env, text = dict(learner), "check user and password in PACELINE_REDIS_URL"
    if fault == "password":
        env["PACELINE_REDIS_URL"] = env["PACELINE_REDIS_URL"].replace("s3cret", "wrongs3cret")
    else:
        env["PACELINE_REDIS_CA"], text = str(secure_redis.other_ca), "name the CA's file in PACELINE_REDIS_CA"
    ended = refused(env)
    assert ended.returncode == 1
    assert text in ended.stderr
    assert "s3cret" not in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def refused(env):
    """`paceline learn`, tried again while the handshake times out: two seconds may be too short on a busy machine."""
    command = [sys.executable, "-m", "paceline.cli", "learn"]
    for _ in range(5):
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        if "Timeout connecting" not in ended.stderr:
            break
    return ended


def test_the_users_are_those_of_the_documentation(secure_redis):
    lines = [line for line in FAULTS.read_text(encoding="utf-8").splitlines() if line.startswith("ACL SETUSER")]
    documented = {line.split()[2]: line.split()[3:] for line in lines}
    for name, rules in secure_redis.rules.items():
        assert [rule for rule in documented[name] if rule[0] != ">"] == [
            rule for rule in rules.split() if rule[0] != ">"
        ]
