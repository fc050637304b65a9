"""The primary of Redis dies between a publication and its swaps: servers agree with the board, every trace is counted.

Sentinels, couriers and what follows the board are real; an engine takes whatever file it is given.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from paceline.buffer.board.member_status import MemberStatus, SwapSaid
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import sha256_of
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.redis_client import client_for, connect
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.learner.delivery.publisher import Lineage, publish, publish_initial
from paceline.rig.sentinels import PASSWORD, SentinelRedis, redis_behind_sentinels
from paceline.serving import config
from paceline.serving.breaker import Breaker
from paceline.serving.capture.courier_process import CourierProcess
from paceline.serving.swap.swapper import Swapper
from paceline.serving.wire.request_forward import Commit
from waiting import until
from wire_forwards import prefill, verify

LINEAGE = Lineage(parent=0, target="target", target_version="0", objective="test")
CONFIG = BufferConfig()


class Server:
    """A replica without an engine: it is asked for a swap, and does it once `may_swap` is set."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.draft_version = 0
        self.asked = threading.Event()
        self.may_swap = threading.Event()
        self.requests: list[str] = []
        settings = config.from_env({**os.environ, "PACELINE_REPLICA": name})
        self._courier = CourierProcess(
            settings,
            f"boot-{name}",
            breaker=Breaker(),
            status=lambda: MemberStatus(draft_version=self.draft_version),
            is_canary_out=lambda: False,
        )
        self._courier.start()
        self._client = client_for(url)
        board = RedisVersionBoard(self._client, CONFIG)
        self._swapper = Swapper(board, self, replica=name, before_canary=lambda: None)
        self._thread = self._swapper.start()

    def serve(self, count: int) -> None:
        for _ in range(count):
            self.requests.append(f"{self.name}-{len(self.requests)}")
            ended = verify(self.requests[-1], Commit(1, (8, 5), "length"))
            assert self._courier.sender.offer([prefill(self.requests[-1]), ended])

    def swap(self, number: int, file: str, sha256: str, is_wanted: Any) -> SwapSaid:
        assert sha256_of(Path(file)) == sha256
        self.asked.set()
        assert self.may_swap.wait(60.0)
        if not is_wanted():
            raise TimeoutError("not wanted any more")
        self.draft_version = number
        return SwapSaid(number=number, commit_ms=1.0, stage_ms=1.0, running=0, at=1.0)

    def take_late(self) -> list[SwapSaid]:
        return []

    def end(self) -> None:
        self.may_swap.set()
        self._swapper.stop()
        self._thread.join()
        self._courier.stop()
        self._client.close()


@dataclass(frozen=True)
class Fleet:
    """Two servers behind Sentinels, a board with version 0 live, and who publishes on it."""

    redis: SentinelRedis
    servers: list[Server]
    buffer: RedisTraceBuffer
    board: RedisVersionBoard
    client: redis.Redis
    versions: Path

    def publish(self, content: bytes) -> int:
        """Publish and make live, as a learner does."""

        def write(folder: Path) -> None:
            (folder / "model.safetensors").write_bytes(content)
            (folder / "config.json").write_text("{}")

        number = publish(self.board, self.versions, write, LINEAGE, by="learner", why="better").number
        self.board.move(number, VersionState.LIVE, "learner", "better")
        return number

    def serve(self, count: int) -> None:
        for server in self.servers:
            server.serve(count)

    def delivered(self) -> list[str]:
        """Requests of all traces in the buffer."""
        return sorted(entry.trace.request_id for entry in self.buffer.replay(1000))

    def counted(self) -> list[tuple[int, dict[str, int]]]:
        """Of each server, how many traces it has captured and what became of those that were not delivered."""
        accounts = [self.board.heartbeats()[f"replica:{server.name}"].account for server in self.servers]
        return [(account.captured, account.dropped) for account in accounts]

    def served(self) -> list[str]:
        return sorted(name for server in self.servers for name in server.requests)

    def is_back(self) -> bool:
        try:
            return bool(self.board.read().rows)
        except BufferUnavailable:
            return False

    def all_draft(self, number: int) -> bool:
        return {server.draft_version for server in self.servers} == {number}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    initial = tmp_path / "initial"
    initial.mkdir()
    (initial / "model.safetensors").write_bytes(b"initial")
    (initial / "config.json").write_text("{}")
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(redis_behind_sentinels(tmp_path / "redis"))
        monkeypatch.setenv("PACELINE_REDIS_URL", made.url)
        client = stack.enter_context(connect(made.url))
        board = RedisVersionBoard(client, CONFIG)
        publish_initial(board, tmp_path / "versions", lambda: initial, LINEAGE, by="learner")
        servers = [Server(name, made.url) for name in ("a", "b")]
        for server in servers:
            stack.callback(server.end)
        buffer = RedisTraceBuffer(client, CONFIG)
        found = Fleet(made, servers, buffer, board, client, tmp_path / "versions")
        found.serve(3)
        until(lambda: found.delivered() == found.served(), "the first traces")
        assert client.wait(1, 10_000) == 1
        yield found
        until(lambda: found.delivered() == found.served(), "every trace, once")
        counts = buffer.counts()
        assert (counts.delivered, counts.pending) == (len(found.served()),) * 2
        until(lambda: found.counted() == [(len(server.requests), {}) for server in servers], "their last heartbeats")


@pytest.mark.guarantee("fail-over-in-a-swap")
def test_a_publication_that_the_replica_had_is_swapped_in_everywhere(fleet: Fleet) -> None:
    number = fleet.publish(b"better")
    for server in fleet.servers:
        assert server.asked.wait(60.0)
    assert fleet.client.wait(1, 10_000) == 1
    fleet.redis.primary.kill()
    for server in fleet.servers:
        server.may_swap.set()
    fleet.serve(2)
    until(fleet.is_back, "the replica to take over")
    assert fleet.board.read().live == number == 1
    until(lambda: fleet.all_draft(number), "both servers to draft with it")
    fleet.serve(2)


def cut_off(fleet: SentinelRedis) -> None:
    """From now on the replica gets nothing of what the primary is given: what is written then dies with that."""
    with redis.Redis(port=fleet.replica_port, password=PASSWORD) as replica:
        replica.config_set("masterauth", "none")
        replica.client_kill_filter(_type="master")
        until(lambda: replica.info("replication")["master_link_status"] == "down", "the replica to be cut off")


@pytest.mark.guarantee("fail-over-in-a-swap")
def test_a_publication_that_died_with_the_primary_leaves_every_server_it_had_reached(fleet: Fleet) -> None:
    cut_off(fleet.redis)
    lost = fleet.publish(b"lost")
    early, late = fleet.servers
    early.may_swap.set()
    until(lambda: early.draft_version == lost, "the first server to draft with it")
    assert late.asked.wait(60.0)
    fleet.redis.primary.kill()
    late.may_swap.set()
    fleet.serve(2)
    until(fleet.is_back, "the replica to take over")
    assert [*fleet.board.read().rows] == [0]
    until(lambda: fleet.all_draft(0), "both servers to draft with the version before it")
    number = fleet.publish(b"next")
    assert number == lost + 1  # no number names two sets of weights
    until(lambda: fleet.all_draft(number), "both servers to draft with what came after it")
    fleet.serve(2)
