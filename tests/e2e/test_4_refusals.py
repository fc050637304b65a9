"""What cannot work says so and what to do next, and never costs the server."""

import os
import subprocess
import sys
from contextlib import closing

import httpx
import pytest
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_board import RedisVersionBoard
from paceline.buffer.redis_client import connect
from paceline.demo.services import free_port, sglang_service
from waiting import until

pytestmark = pytest.mark.e2e


def run(*words, **env):
    command = [sys.executable, "-m", "paceline.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | env, check=False)


def test_a_learner_without_redis_ends_at_once_and_says_what_to_do(rig):
    url = f"redis://127.0.0.1:{free_port()}/0"
    env = {"PACELINE_TARGET": "t", "PACELINE_TARGET_PATH": str(rig.target), "PACELINE_DRAFT": str(rig.draft)}
    ended = run("learn", PACELINE_REDIS_URL=url, **env)
    assert ended.returncode == 1
    assert "start Redis or correct PACELINE_REDIS_URL" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_list_of_versions_without_redis_ends_with_an_error():
    ended = run("versions", "--redis-url", f"redis://127.0.0.1:{free_port()}/0")
    assert ended.returncode == 1
    assert "start Redis" in ended.stderr


def test_the_check_command_finds_every_hook_target():
    ended = run("check")
    assert ended.returncode == 0, ended.stderr
    assert "every hook target is there" in ended.stdout


def test_a_server_that_cannot_be_captured_serves_and_says_why(rig, tmp_path):
    port = free_port()
    flags = ["--model-path", str(rig.target), "--device", "cpu", "--max-total-tokens", "1024", "--log-level", "warning"]
    env = {"PACELINE_REDIS_URL": rig.redis_url, "PACELINE_SPECULATOR": "plain", "PACELINE_REPLICA": "plain-0"}
    with closing(connect(rig.redis_url)) as client, sglang_service(flags, port, log=tmp_path / "log", env=env):
        board = RedisVersionBoard(client, BufferConfig(speculator="plain"))
        until(lambda: "replica:plain-0" in board.heartbeats(), "the replica's heartbeat")
        reading = board.heartbeats()["replica:plain-0"]
        body = {"text": "import", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
        reply = httpx.post(f"http://127.0.0.1:{port}/generate", json=body, timeout=60.0, trust_env=False).json()
    assert reply["meta_info"]["completion_tokens"] == 4
    assert reading["capture"] == "off"
    assert "expected EAGLE3" in reading["capture_reason"]
