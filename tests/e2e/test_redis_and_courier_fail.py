"""What breaks around the real server costs no token, and every trace is delivered or counted with its reason."""

import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from paceline.buffer.redis_client import connect
from waiting import until

pytestmark = pytest.mark.e2e

CROWD, REPLICA = 16, "e2e-0"


@pytest.fixture(scope="module")
def plain(rig):
    """What the server answers when nothing is broken, by position."""
    return [reply["output_ids"] for reply in rig.generate_all(crowd(rig, "calm"))]


def crowd(rig, name):
    return [{"rid": f"{name}-{i}", "text": rig.texts[i][100:260], "max_tokens": 40} for i in range(CROWD)]


def answers(rig, name):
    return [reply["output_ids"] for reply in rig.generate_all(crowd(rig, name))]


def is_well(rig):
    status = rig.status()
    return status.capture == "on" and status.buffer_error == ""


def assert_balanced(rig):
    status = rig.drained()
    assert status.account.captured == status.account.delivered + sum(status.account.dropped.values())
    return status


@contextmanager
def hanging(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.guarantee("redis-hangs")
def test_a_redis_that_hangs_costs_nothing(rig, plain):
    before = assert_balanced(rig)
    with hanging(rig.redis.pid):
        during = answers(rig, "hanging")
    assert during == plain
    until(lambda: is_well(rig), "the replica to find Redis again")
    after = assert_balanced(rig)
    assert after.account.dropped == before.account.dropped
    assert all(len(rig.traces_of(job["rid"])) == 1 for job in crowd(rig, "hanging"))


@pytest.mark.guarantee("redis-out-of-memory")
def test_a_redis_without_memory_costs_nothing_once_it_has_some_again(rig, plain):
    before = assert_balanced(rig)
    with connect(rig.redis_url) as client:
        client.config_set("maxmemory", 1)
        try:
            during = answers(rig, "full")
        finally:
            client.config_set("maxmemory", "2gb")
    assert during == plain
    until(lambda: is_well(rig), "the replica to find room in Redis again")
    after = assert_balanced(rig)
    assert after.account.dropped == before.account.dropped
    assert all(len(rig.traces_of(job["rid"])) == 1 for job in crowd(rig, "full"))


def courier_pid(rig):
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, env = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:  # it has ended, or is not ours
            continue
        wanted = {f"PACELINE_REPLICA={REPLICA}", f"PACELINE_REDIS_URL={rig.redis_url}"}
        if b"paceline.serving.courier" in command and wanted <= set(env.decode(errors="replace").split("\0")):
            return int(folder.name)
    raise AssertionError(f"no courier of {REPLICA}")


@pytest.mark.guarantee("courier-killed")
def test_a_courier_killed_at_work_is_replaced_and_what_it_held_is_counted(rig, plain):
    text = rig.texts[CROWD][100:260]
    calm = rig.generate("streamed-calm", text, max_tokens=160)
    before = assert_balanced(rig)
    params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": 160}
    body = {"rid": "streamed-orphan", "text": text, "stream": True, "sampling_params": params}
    url, pid = f"http://127.0.0.1:{rig.port}/generate", courier_pid(rig)
    with httpx.stream("POST", url, json=body, timeout=600.0, trust_env=False) as lines:
        chunks = (line.removeprefix("data: ") for line in lines.iter_lines() if line.startswith("data: {"))
        for _ in range(30):  # rounds of this request have left the scheduler process by then
            next(chunks)
        os.kill(pid, signal.SIGKILL)
        *_, last = chunks
    assert json.loads(last)["text"] == calm["text"]
    until(lambda: rig.status().courier.restarts > before.courier.restarts, "another courier")
    after = assert_balanced(rig)
    assert after.account.captured == before.account.captured + 1
    assert after.account.dropped.get("courier_died", 0) == before.account.dropped.get("courier_died", 0) + 1
    assert rig.traces_of("streamed-orphan") == []
    assert answers(rig, "healed") == plain
    assert_balanced(rig)
    assert all(len(rig.traces_of(job["rid"])) == 1 for job in crowd(rig, "healed"))
