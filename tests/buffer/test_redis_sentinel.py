"""Redis behind real Sentinels: the primary is killed, and buffer, board and Celery's broker go on with its replica."""

import contextlib

import pytest
from fleet import version
from kombu import Connection
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version import VersionState
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable, ConfigError
from paceline.buffer.redis_client import address, broker_options, broker_url, client_for, connect, hosts_of
from paceline.buffer.redis_sentinel import SentinelUrl
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.rig.sentinels import redis_behind_sentinels
from waiting import until

CONFIG = BufferConfig(speculator="failing-over")
PASSWORD = "p@ss,w/rd"


@pytest.fixture
def fleet(tmp_path):
    with redis_behind_sentinels(tmp_path) as made:
        yield made


def goes_through(act) -> bool:
    try:
        act()
    except BufferUnavailable:
        return False
    return True


@pytest.mark.guarantee("redis-sentinel")
def test_a_killed_primary_loses_nothing_that_its_replica_had(fleet, make_trace):
    queue = {"transport_options": broker_options(fleet.url)}
    with connect(fleet.url) as client, Connection(broker_url(fleet.url), **queue) as broker:
        buffer, board = RedisTraceBuffer(client, CONFIG), RedisVersionBoard(client, CONFIG)
        buffer.append([make_trace(n) for n in range(4)])
        entries = buffer.claim("a learner", 2)
        buffer.ack([entries[0].entry_id], "trained")
        board.register(version(board.next_number()), "learner", "trained")
        with contextlib.closing(broker.SimpleQueue("rounds")) as rounds:
            rounds.put({"round": 1})
        assert client.wait(1, 10_000) == 1  # Redis replicates behind a write: what the replica lacks is lost with it
        fleet.primary.kill()
        late = make_trace(4)
        with pytest.raises(BufferUnavailable, match=r"traces of its Sentinels, database 2"):
            buffer.append([late])
        until(lambda: goes_through(lambda: buffer.append([late])), "the replica to take over")
        assert client.client_info()["laddr"] == f"127.0.0.1:{fleet.replica_port}"
        buffer.append([late])  # as a courier does that heard no answer: once is enough
        assert (buffer.counts().delivered, buffer.counts().pending) == (5, 4)
        board.move(0, VersionState.LIVE, "operator", "a swap in the middle of it")
        assert board.read().live == 0
        claimed = buffer.claim("another learner", 9)
        assert [entry.trace.trace_id for entry in claimed] == ["trace-2", "trace-3", "trace-4"]
    with (
        Connection(broker_url(fleet.url), **queue) as broker,
        contextlib.closing(broker.SimpleQueue("rounds")) as rounds,
    ):
        message = rounds.get(timeout=10.0)
        message.ack()
        assert message.payload == {"round": 1}


def test_a_url_names_sentinels_the_primary_and_who_asks_it():
    url = "sentinels://ann:p%40ss%2Cw%2Frd@one:1,[::1],three.example.org:26380/my%20traces/3"
    found = SentinelUrl.parse(url)
    assert found.sentinels == (("one", 1), ("::1", 26379), ("three.example.org", 26380))
    assert (found.service, found.db, found.user, found.password) == ("my traces", 3, "ann", PASSWORD)
    assert hosts_of(url) == {"one", "::1", "three.example.org"}
    who = "ann:p%40ss%2Cw%2Frd@"
    assert broker_url(url) == (
        f"sentinel://{who}one:1/3;sentinel://{who}[::1]:26379/3;sentinel://{who}three.example.org:26380/3"
    )
    options = broker_options(url)
    assert options["master_name"] == "my traces"
    assert options["sentinel_kwargs"]["ssl_cert_reqs"] == "required"
    assert broker_options("redis://127.0.0.1/0") == {}
    assert address(client_for(url)) == "my traces of its Sentinels, database 3"
    assert "w/rd" not in repr(client_for(url))


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://one:26379",
        "sentinel://one:26379/",
        "sentinel://one:port/traces",
        "sentinel://one:26379,/traces",
        "sentinel://:secret@w/rd@one/traces",
        "sentinel://one/traces/three",
        "sentinel://one/traces/0?ssl_cert_reqs=none",
    ],
)
def test_what_is_no_such_url_is_refused_without_its_password(url):
    with pytest.raises(
        ConfigError, match=r"PACELINE_REDIS_URL: got .*sentinel://host:port,host:port/service/db"
    ) as told:
        client_for(url)
    assert "secret" not in str(told.value)


def test_a_ca_needs_the_scheme_with_tls():
    with pytest.raises(ConfigError, match="got sentinel:// with PACELINE_REDIS_CA set, expected sentinels:// for TLS"):
        client_for("sentinel://one/traces", "ca.pem")
