"""What a fleet of one size costs: each act's processor time in this process and in Redis, and Redis' memory."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any

from rich.console import Console

from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.config import BufferConfig
from ...buffer.keys import LEDGER, PAYLOAD, TRACE_IDS, TRACES
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...buffer.stream.trace import DraftTrace
from ...dashboards.answer import answer
from ...dashboards.served import HISTORY_S
from ...dashboards.snapshot import take
from ...learner.claim.intake import Outcome, sort_entries
from ...serving.courier.backlog import size_bytes
from .full_beat import full_status
from .simulated import RATES, TIMEOUT_S, SimulatedReplica, fleet
from .stock import intake_of, sent_by

CONSUMER = "growth"
#: Payload that Redis keeps.
MAX_BYTES = 256 << 20
#: Bytes of arrays, and traces, between two claims: what is sent and claimed at once must fit a small machine.
BATCH_BYTES = 64 << 20
BATCH_TRACES = 64
#: Seconds of beats and looks of all replicas together, at least so many beats of one.
BEATS = 64
READS = 8


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds of one act."""

    own_s: float
    redis_s: float

    def over(self, acts: int) -> "Cost":
        """Of one of so many acts."""
        return Cost(self.own_s / acts, self.redis_s / acts)

    def and_of(self, client: Any, act: Callable[[], object]) -> "Cost":
        """Together with that of `act()`, which is done."""
        more = cost_of(client, act)
        return Cost(self.own_s + more.own_s, self.redis_s + more.redis_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCosts:
    """Of a fleet of one size."""

    replicas: int
    append: Cost  # of one trace, encoded
    claim: Cost  # of one trace, decoded, sorted by outcome and acked
    beat: Cost  # a replica's second: a beat and a look at the board's events
    heartbeats: Cost  # all heartbeats read once, as a replica that waits for its turn to swap does
    status: Cost  # one answer of `paceline status`
    replica_bytes: float  # in Redis, of one replica: its keys and its connections
    payload_share: float  # what the keys of traces take in Redis over their bytes


def costs_of(url: str, count: int, *, stock: Sequence[DraftTrace], sent: int) -> FleetCosts:
    """Measure `count` replicas, which send `sent` traces together; Redis is emptied first."""
    config = BufferConfig(max_bytes=MAX_BYTES)
    with connect(url, timeout_s=TIMEOUT_S) as client:
        client.flushall()
        empty_bytes = used_bytes(client)
        with fleet(url, count, config) as replicas:
            member_bytes = used_bytes(client) - empty_bytes
            # Before there are traces: large ones are written and freed by threads of Redis after it has answered.
            beat = _beats(client, replicas)
            board = RedisVersionBoard(client, config)
            heartbeats = cost_of(client, lambda: _read(board)).over(READS)
            status = cost_of(client, lambda: _status(board, config.speculator))
            learner = RedisTraceBuffer(client, config)
            append, claim = _traffic(client, learner, replicas, stock=stock, sent=sent)
            payload_bytes = learner.counts().bytes
            kept_bytes = trace_bytes(client, config.speculator)
    return FleetCosts(
        replicas=count,
        append=append.over(sent),
        claim=claim.over(sent),
        beat=beat,
        heartbeats=heartbeats,
        status=status,
        replica_bytes=member_bytes / count,
        payload_share=kept_bytes / payload_bytes,
    )


def cost_of(client: Any, act: Callable[[], object]) -> Cost:
    """Of `act()`; of Redis its own process alone, not the child that rewrites its file."""
    redis_s = redis_cpu_s(client)
    own_s = time.process_time()
    act()
    return Cost(time.process_time() - own_s, redis_cpu_s(client) - redis_s)


def redis_cpu_s(client: Any) -> float:
    """Processor time of Redis since it started."""
    found = client.info("cpu")
    return float(found["used_cpu_sys"]) + float(found["used_cpu_user"])


def used_bytes(client: Any) -> int:
    """What Redis has allocated, as it compares it with maxmemory: without what waits for its file."""
    found = client.info("memory")
    return int(found["used_memory"]) - int(found["mem_aof_buffer"])


def trace_bytes(client: Any, speculator: str) -> int:
    """What the keys of a speculator's traces take of that."""
    names = [key.name(speculator) for key in (TRACES, LEDGER, TRACE_IDS)]
    names += client.scan_iter(match=PAYLOAD.name(speculator, "*"), count=10_000)
    return sum(int(client.memory_usage(name, samples=0)) for name in names)


def _traffic(
    client: Any,
    learner: RedisTraceBuffer,
    replicas: Sequence[SimulatedReplica],
    *,
    stock: Sequence[DraftTrace],
    sent: int,
) -> tuple[Cost, Cost]:
    """Replicas send in turn, and a learner claims before more waits than the buffer holds: none is trimmed unread."""
    batch = min(max(BATCH_BYTES // size_bytes(stock[0]), 1), BATCH_TRACES)
    append = claim = Cost(0.0, 0.0)
    for first in range(0, sent, batch):
        places = range(first, min(first + batch, sent))
        senders = [replicas[place % len(replicas)] for place in places]
        traces = [
            sent_by(sender.name, stock[place % len(stock)]) for sender, place in zip(senders, places, strict=True)
        ]
        append = append.and_of(client, partial(_append, senders, traces))
        claim = claim.and_of(client, partial(_claim, learner, stock[0], len(traces)))
    counts = learner.counts()
    if counts.acked != {Outcome.LEARNED.value: sent} or counts.trimmed:
        raise SystemExit(f"traces: got {counts.acked} acked and {counts.trimmed} trimmed, expected {sent} learned")
    return append, claim


def _append(senders: Sequence[SimulatedReplica], traces: Sequence[DraftTrace]) -> None:
    for sender, trace in zip(senders, traces, strict=True):
        sender.buffer.append([trace])


def _claim(learner: RedisTraceBuffer, like: DraftTrace, traces: int) -> None:
    entries = learner.claim(CONSUMER, traces)
    for outcome, found in sort_entries(entries, intake_of(like), ()).items():
        learner.ack([entry.entry_id for entry in found], outcome)


def _beats(client: Any, replicas: Sequence[SimulatedReplica]) -> Cost:
    """Of one replica and one second."""
    seconds = -(-BEATS // len(replicas))
    said = {replica.name: full_status(replica.seed % RATES, replica.courier_board.now()) for replica in replicas}

    def beat() -> None:
        for _ in range(seconds):
            for replica in replicas:
                replica.beat(said[replica.name])
                replica.look()

    return cost_of(client, beat).over(seconds * len(replicas))


def _read(board: RedisVersionBoard) -> None:
    for _ in range(READS):  # each is let go: what is kept would be walked over by Python's collector
        board.heartbeats()


def _status(board: RedisVersionBoard, speculator: str) -> None:
    """Everything but the terminal: `paceline status` makes rows and sentences of what it reads, and prints them."""
    Console(file=StringIO(), width=120).print(answer(take(board, speculator, HISTORY_S)).view())
