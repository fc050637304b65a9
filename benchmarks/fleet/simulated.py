"""Replicas without servers: the connections, beats, looks and appends that a replica has with Redis."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ...buffer.board.member_name import MemberName
from ...buffer.board.member_status import MemberStatus
from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.config import BufferConfig
from ...buffer.keys import HISTORY
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...serving.courier.account import ReplicaAccount
from ...serving.wire.counts import CaptureCounts
from .full_beat import BOOT, full_status, plant_hour

#: Replicas that count at different rates; the others count like these.
RATES = 8
#: As long as the shortest wait of Redis: a swapper waits for up to a second, and as many commands go out.
LOOK_S = 0.001
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReplica:
    """One of a fleet. What it calls is what a courier and a swapper call, each with a connection of its own."""

    name: str
    seed: int
    buffer: RedisTraceBuffer
    account: ReplicaAccount
    courier_board: RedisVersionBoard
    swapper_board: RedisVersionBoard

    def beat(self, said: MemberStatus) -> None:
        """What a courier does every second."""
        self.account.take_name(may_wait=False)
        self.account.sign(said)
        self.account.beat(said)

    def look(self) -> None:
        """What a swapper does every second while nothing happens on the board."""
        self.swapper_board.events("", LOOK_S)


@contextmanager
def fleet(url: str, count: int, config: BufferConfig) -> Iterator[list[SimulatedReplica]]:
    """`count` replicas, each with two connections, a heartbeat and an hour of history."""
    with ExitStack() as open_clients:

        def client() -> Any:
            return open_clients.enter_context(connect(url, timeout_s=TIMEOUT_S))

        planter = client()
        replicas = [_replica(f"{place:04}", place, client, config) for place in range(count)]
        for replica in replicas:
            now_s = replica.courier_board.now()
            plant_hour(planter, HISTORY.name(config.speculator, f"replica:{replica.name}"), replica.seed % RATES, now_s)
            replica.beat(full_status(replica.seed % RATES, now_s))
        yield replicas


def _replica(name: str, seed: int, client: Any, config: BufferConfig) -> SimulatedReplica:
    courier = client()
    board = RedisVersionBoard(courier, config)
    return SimulatedReplica(
        name=name,
        seed=seed,
        buffer=RedisTraceBuffer(courier, config),
        account=ReplicaAccount(board, MemberName(board, f"replica:{name}", f"{BOOT}{seed}"), CaptureCounts()),
        courier_board=board,
        swapper_board=RedisVersionBoard(client(), config),
    )
