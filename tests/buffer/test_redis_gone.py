"""Redis that is not there, goes away, or comes back with or without its data."""

import pickle
import shutil
import socket
from contextlib import contextmanager

import pytest
import redis
from fleet import version
from paceline.buffer.board.lease import Lease
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version import VersionState
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable, ConfigError
from paceline.buffer.plain_text import masked
from paceline.buffer.redis_client import TIMEOUT_S, connect
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from waiting import until

CONFIG = BufferConfig()


def names(entries) -> list[str]:
    return [entry.trace.trace_id for entry in entries]


def test_a_failed_connection_says_where_and_what_to_do_without_the_password():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(BufferUnavailable) as caught:
        connect(f"redis://me:secret@127.0.0.1:{port}/3")
    assert f"redis://127.0.0.1:{port}/3" in str(caught.value)
    assert "start Redis or correct PACELINE_REDIS_URL" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_who_is_refused_is_told_so_without_the_password_and_leaves_no_connection(own_redis):
    with connect(own_redis.url) as client:
        client.config_set("requirepass", "right")
        client.acl_setuser("idle", enabled=True, passwords=["+secret"], commands=["-ping"])
        for user in ("", ":wrong-secret@", "idle:secret@"):
            with pytest.raises(BufferUnavailable, match="user and password") as caught:
                connect(own_redis.url.replace("//", f"//{user}"))
            assert "secret" not in str(caught.value)
            until(lambda: client.info("clients")["connected_clients"] == 1, "Redis to notice that it was closed")


@pytest.mark.parametrize(
    "url", ["http://:secret@host", "redis://:secret@host:port/0", "redis://:secret@[::1/0", "host"]
)
def test_a_malformed_url_is_a_config_error_without_the_password(url):
    with pytest.raises(ConfigError, match="PACELINE_REDIS_URL") as caught:
        connect(url)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("path", ["/xx", "/0x1", "/1/2", "/-1"])
def test_a_database_that_is_no_number_is_not_taken_for_database_0(path):
    with pytest.raises(ConfigError, match=f"got redis://host:6379{path}, expected redis://host:port/db"):
        connect(f"redis://host:6379{path}")


def test_a_database_that_redis_does_not_have_says_so(redis_url):
    with pytest.raises(BufferUnavailable, match="name a database that Redis has at the end of PACELINE_REDIS_URL"):
        connect(f"{redis_url.rpartition('/')[0]}/9999")


def test_masking_keeps_everything_but_secrets():
    assert masked("rediss://me:secret@host:6380/2?password=secret") == "rediss://me:***@host:6380/2?***"
    assert masked("redis://host/0") == "redis://host/0"
    assert masked("unix://:secret@/run/redis.sock") == "unix://:***@/run/redis.sock"


def test_the_client_waits_briefly_and_retries_nothing(redis_url):
    with connect(redis_url) as client:
        settings = client.get_connection_kwargs()
    assert settings["socket_timeout"] == settings["socket_connect_timeout"] == TIMEOUT_S == 2.0
    assert settings["retry"].get_retries() == 0
    assert settings["protocol"] == 2
    with connect(redis_url, timeout_s=30.0) as patient:
        settings = patient.get_connection_kwargs()
    assert settings["socket_timeout"] == settings["socket_connect_timeout"] == 30.0


def test_a_server_that_accepts_and_never_answers_is_unavailable():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        client = redis.Redis(
            port=mute.getsockname()[1], socket_timeout=0.02, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        )
        with client, pytest.raises(BufferUnavailable, match="start Redis or correct"):
            RedisTraceBuffer(client, CONFIG).counts()


@contextmanager
def everybody(url: str):
    with connect(url, timeout_s=30.0) as client:
        yield RedisTraceBuffer(client, CONFIG), RedisVersionBoard(client, CONFIG)


def test_every_call_reports_a_redis_that_went_away(own_redis, make_trace):
    with everybody(own_redis.url) as (buffer, board):
        ids = buffer.append([make_trace()])
        own_redis.stop()
        calls = [
            lambda: buffer.append([make_trace()]),
            lambda: buffer.claim("a", 1),
            lambda: buffer.ack(ids, "trained"),
            lambda: buffer.replay(1),
            lambda: buffer.replay(1, acked_only=True),
            buffer.counts,
            lambda: buffer.dead_letters(1),
            board.next_number,
            lambda: board.register(version(0), "test", "why"),
            lambda: board.move(0, VersionState.LIVE, "test", "why"),
            lambda: board.roll_back("test", "why"),
            board.read,
            board.events,
            lambda: board.beat("m", MemberStatus(), 1.0),
            board.heartbeats,
            lambda: board.lease("l", 1.0).__enter__(),
        ]
        for call in calls:
            with pytest.raises(BufferUnavailable, match="start Redis or correct PACELINE_REDIS_URL"):
                call()


def test_a_lease_held_while_redis_dies_ends_with_the_outcome_of_its_body(own_redis):
    def body(lease: Lease) -> None:
        own_redis.stop()
        with pytest.raises(BufferUnavailable, match="start Redis"):
            lease.is_held()  # unknown
        raise ZeroDivisionError

    with (
        everybody(own_redis.url) as (_, board),
        pytest.raises(ZeroDivisionError),
        board.lease("round", 60.0) as lease,
    ):
        body(lease)


def test_everything_continues_after_a_restart_with_data(own_redis, make_trace):
    with everybody(own_redis.url) as (buffer, board):
        ids = buffer.append([make_trace(seed) for seed in range(3)])
        buffer.claim("a", 2)
        buffer.ack(ids[:1], "trained")
        board.register(version(board.next_number()), "test", "why")
        before = buffer.counts()
        own_redis.stop()
        own_redis.start("--appendonly", "yes", "--appendfsync", "always")
        assert buffer.counts() == before
        assert names(buffer.claim("a", 9)) == ["trace-2"]
        assert buffer.ack(ids, "trained") == 2
        assert board.read().rows[0].state is VersionState.CANDIDATE
        assert board.next_number() == 1


def test_everything_starts_over_after_a_restart_without_data(own_redis, make_trace):
    with everybody(own_redis.url) as (buffer, board):
        buffer.append([make_trace(seed) for seed in range(3)])
        buffer.claim("a", 2)
        own_redis.stop()
        for left in own_redis.folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        own_redis.start()
        assert names(buffer.claim("a", 9)) == []
        buffer.append([make_trace(8)])
        assert names(buffer.claim("b", 9)) == ["trace-8"]
        counts = buffer.counts()
        assert (counts.delivered, counts.pending, counts.trimmed) == (1, 1, 0)
        assert board.next_number() == 0
        assert board.register(version(0), "test", "why").number == 0
