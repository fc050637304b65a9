"""Redis servers that paceline does not work on: real ones, and what is said of each at a start and by doctor."""

from pathlib import Path

import pytest
import redis
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.finding import Level
from paceline.buffer.redis_client import client_for, connect
from paceline.buffer.settings.sources import read_settings
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.dashboards.doctor.board_side import examine_board
from paceline.learner.app import run_worker
from paceline.learner.config import LearnerConfig
from paceline.rig.sentinels import redis_behind_sentinels
from waiting import until

CLUSTER = (
    r"got a node of a Redis Cluster, expected a Redis that is none \(cluster-enabled no\), alone or behind Sentinels"
)
SLOTS = 16384


@pytest.fixture
def cluster(own_redis, request):
    """A Redis Cluster of one node, which has every slot; a parameter is further options."""
    own_redis.stop()
    own_redis.start("--cluster-enabled", "yes", *getattr(request, "param", ()))
    port = int(own_redis.url.rpartition(":")[2].removesuffix("/0"))
    with redis.Redis(port=port, protocol=2) as node:
        node.execute_command("CLUSTER ADDSLOTS", *range(SLOTS))
        until(lambda: node.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "the cluster to be up")
        yield own_redis.url, node


def wrong_of_redis(url):
    """What doctor finds wrong about Redis, sentence by sentence."""
    settings = read_settings({"PACELINE_REDIS_URL": url})
    findings = examine_board(settings, None, speculator=None, supported=(), aliases=None)
    return [one.sentence for one in findings if one.topic == "Redis" and one.level is Level.WRONG]


@pytest.mark.guarantee("redis-cluster-refused")
def test_a_node_of_a_cluster_is_refused_by_everybody_and_gets_no_key(cluster, make_trace, tmp_path):
    url, node = cluster
    with client_for(url) as client, pytest.raises(BufferUnavailable, match=CLUSTER):  # as servers make theirs
        RedisTraceBuffer(client, BufferConfig()).append([make_trace(0)])
    with pytest.raises(BufferUnavailable, match=CLUSTER):
        run_worker(
            LearnerConfig(redis_url=url, target_path=Path("nowhere"), initial_draft="nowhere", data_dir=tmp_path),
            beat=False,
        )
    (sentence,) = wrong_of_redis(url)
    assert "got a node of a Redis Cluster, expected a Redis that is none" in sentence
    assert node.dbsize() == 0


@pytest.mark.parametrize("cluster", [("--rename-command", "HELLO", "")], indirect=True)
def test_a_cluster_is_named_where_only_its_refusals_tell(cluster, make_trace):
    url, node = cluster
    # Valkey has databases in a cluster, and this one has one.
    with pytest.raises(
        BufferUnavailable, match=r"this is a node of a Redis Cluster, expected a|DB index is out of range"
    ):
        connect(f"{url.removesuffix('/0')}/1")
    node.execute_command("CLUSTER DELSLOTS", *range(SLOTS))
    with connect(url) as client, pytest.raises(BufferUnavailable, match="this is a node of a Redis Cluster"):
        RedisTraceBuffer(client, BufferConfig()).append([make_trace(0)])


def test_a_redis_that_does_not_say_what_it_is_works(own_redis, make_trace):
    own_redis.stop()
    own_redis.start("--rename-command", "HELLO", "")
    with connect(own_redis.url) as client:
        assert len(RedisTraceBuffer(client, BufferConfig()).append([make_trace(0)])) == 1


def test_a_sentinel_and_a_replica_are_taken_for_what_they_are(tmp_path, make_trace):
    with redis_behind_sentinels(tmp_path) as fleet:
        host = fleet.url.rpartition("@")[2].partition(",")[0]
        with pytest.raises(BufferUnavailable, match=r"got a Sentinel, expected Redis itself, or sentinel://host:port"):
            connect(f"redis://{host}/0")
        replica = f"redis://:p%40ss%2Cw%2Frd@127.0.0.1:{fleet.replica_port}/0"
        (sentence,) = wrong_of_redis(replica)
        assert sentence.startswith("got a replica, expected the primary")
        with (
            connect(replica) as client,
            pytest.raises(BufferUnavailable, match="point PACELINE_REDIS_URL at the primary, not at a replica"),
        ):
            RedisTraceBuffer(client, BufferConfig()).append([make_trace(0)])
