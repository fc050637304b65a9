"""PACELINE_RETENTION=memory: no trace is given to a Redis that writes to a disk, and no process leaves a core dump."""

import logging
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import ConfigError
from paceline.buffer.finding import Level
from paceline.buffer.redis_client import connect
from paceline.buffer.retention import begin, redis_retention
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.learner.app import run_worker
from paceline.learner.config import LearnerConfig
from paceline.rig.readiness import free_port
from paceline.rig.services import redis_server
from waiting import until

DISK, MEMORY = BufferConfig(), BufferConfig(retention="memory")
OFF = {"appendonly": "no", "save": ""}
#: The rules of docs/faults.md for a server's user, who may not ask Redis for its settings, and what lets it ask.
RULES = ("on", ">secret", "~paceline:{default}:*", "+@all", "-@admin", "-@dangerous")
MAY_ASK = ("+config|get", "+info")


@pytest.fixture
def client(own_redis) -> Iterator[redis.Redis]:
    """Of a Redis that writes nothing to a disk."""
    with connect(own_redis.url, timeout_s=30.0) as found:
        for name, off in OFF.items():
            found.config_set(name, off)
        yield found


@pytest.mark.guarantee("zero-retention")
@pytest.mark.parametrize(("name", "value"), [("appendonly", "yes"), ("save", "3600 1")])
def test_a_redis_that_writes_to_its_disk_gets_no_trace_until_it_does_not(client, make_trace, name, value):
    buffer = RedisTraceBuffer(client, MEMORY)
    buffer.append([make_trace(0)])
    assert redis_retention(client).level is Level.OK
    client.config_set(name, value)
    with pytest.raises(ConfigError, match=f"got {name} '{value}', expected '{OFF[name]}' with PACELINE_RETENTION"):
        buffer.append([make_trace(1)])
    assert redis_retention(client).level is Level.WRONG
    assert buffer.counts().delivered == 1
    RedisTraceBuffer(client, DISK).append([make_trace(2)])
    client.config_set(name, OFF[name])
    buffer.append([make_trace(1)])
    assert buffer.counts().delivered == 3


@pytest.mark.guarantee("zero-retention")
@pytest.mark.parametrize("is_renamed", [True, False], ids=["no CONFIG", "no permission"])
def test_a_redis_that_may_not_be_asked_is_unknown_and_warned_of_once(own_redis, client, make_trace, caplog, is_renamed):
    url = own_redis.url
    if is_renamed:  # as managed services do
        own_redis.stop()
        own_redis.start("--rename-command", "CONFIG", "")
    else:
        client.acl_setuser("courier", reset=True)
        client.execute_command("ACL", "SETUSER", "courier", *RULES)
        url = url.replace("redis://", "redis://courier:secret@")
    with connect(url, timeout_s=30.0) as asking, caplog.at_level(logging.WARNING):
        found = redis_retention(asking)
        assert found.level is Level.UNKNOWN
        assert "cannot tell whether Redis at redis://127.0.0.1" in found.sentence
        buffer = RedisTraceBuffer(asking, MEMORY)
        buffer.append([make_trace(0)])
        buffer.append([make_trace(1)])
        assert buffer.counts().delivered == 2
        begin(asking, DISK)
        assert [record.message for record in caplog.records] == [f"paceline: {found.sentence}"]
        if not is_renamed:
            client.execute_command("ACL", "SETUSER", "courier", *MAY_ASK)
            assert redis_retention(asking).level is Level.OK


def test_a_redis_with_replicas_is_unknown(own_redis, client, tmp_path):
    replica = type(own_redis)(redis_server(), tmp_path)
    replica.start("--replicaof", "127.0.0.1", own_redis.url.rpartition(":")[2].partition("/")[0])
    try:
        until(lambda: client.info("replication")["connected_slaves"], "the replica")
        found = redis_retention(client)
        assert found.level is Level.UNKNOWN
        assert "it has replicas (1), which have a disk and settings of their own" in found.sentence
    finally:
        replica.stop()


@pytest.fixture
def core_limit() -> Iterator[None]:
    """As large as it may be, and afterwards as before."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


def core_bytes() -> int:
    return resource.getrlimit(resource.RLIMIT_CORE)[0]


@pytest.mark.usefixtures("core_limit")
def test_a_learner_dumps_no_core_and_starts_on_no_redis_that_writes_to_a_disk(client, own_redis, tmp_path):
    before = core_bytes()
    begin(client, DISK)
    assert core_bytes() == before
    begin(client, MEMORY)
    assert core_bytes() == 0
    client.config_set("appendonly", "yes")
    begin(client, DISK)
    nowhere = tmp_path / "nowhere"
    config = LearnerConfig(target_path=nowhere, initial_draft=nowhere, redis_url=own_redis.url, buffer=MEMORY)
    with pytest.raises(ConfigError, match="got appendonly 'yes', expected 'no'"):
        run_worker(config, beat=False)


@pytest.mark.usefixtures("core_limit")
@pytest.mark.parametrize("mode", ["disk", "memory"])
def test_a_process_of_sglang_dumps_no_core(mode):
    hook = "from paceline.serving import plugin; plugin._hook_scheduler = lambda settings: None; plugin.register()"
    code = f"{hook}; import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"
    env = {"PACELINE_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0", "PACELINE_RETENTION": mode}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) == (0 if mode == "memory" else core_bytes())
