"""How fast the buffer takes traces that are encoded already, against a bare XADD of the same bytes."""

import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...buffer.config import BufferConfig
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...rig.ratio import Ratio, ratio
from ...rig.readiness import free_port
from ...rig.services import redis_service
from ..measure.paired import in_rounds
from .deployed import BUFFER_BYTES

SEED = 0
BARE = "bare"
#: For an answer to as many bytes as a round has.
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """Of one size of payloads: megabytes per second, the medians, and rounds paired."""

    payload_bytes: int
    depth: int  # payloads per round trip
    share: Ratio  # of the bare XADD's speed
    mb_per_s: float
    bare_mb_per_s: float

    def line(self) -> str:
        """One row of the table."""
        speeds = f"{self.mb_per_s:,.0f} | {self.bare_mb_per_s:,.0f}"
        return f"| {self.payload_bytes:,} | {self.depth} | {speeds} | {self.share.text()} |"


def against_bare(folder: Path, *, payload_bytes: int, depth: int, trips: int, rounds: int) -> Ingest:
    """Append `depth` payloads per round trip, `trips` of them a round; both ways on one Redis, emptied in between."""
    payloads = [random.Random(f"{SEED} {number}").randbytes(payload_bytes) for number in range(depth)]
    port = free_port()
    with redis_service(folder, port), connect(f"redis://127.0.0.1:{port}/0", timeout_s=TIMEOUT_S) as client:
        buffer = RedisTraceBuffer(client, BufferConfig(max_bytes=BUFFER_BYTES))
        ways = {
            "paceline": _timed(client, trips, lambda: _append(buffer, payloads)),
            BARE: _timed(client, trips, lambda: _xadd(client, payloads)),
        }
        for way in ways.values():  # the scripts are loaded, the memory is taken
            way()
        seconds = in_rounds(ways, rounds, SEED)
    size_mb = payload_bytes * depth * trips / 1e6
    own, bare = (sorted(seconds[name])[rounds // 2] for name in ("paceline", BARE))
    return Ingest(
        payload_bytes=payload_bytes,
        depth=depth,
        share=ratio(seconds[BARE], seconds["paceline"]),
        mb_per_s=size_mb / own,
        bare_mb_per_s=size_mb / bare,
    )


def _append(buffer: RedisTraceBuffer, payloads: Sequence[bytes]) -> object:
    # Without encoding, which the courier pays for whatever takes the bytes.
    return buffer._append_raw(payloads, [uuid.uuid4().hex for _ in payloads])  # noqa: SLF001


def _xadd(client: Any, payloads: Sequence[bytes]) -> object:
    with client.pipeline(transaction=False) as pipe:
        for payload in payloads:
            pipe.xadd(BARE, {"trace": payload})
        return pipe.execute()


def _timed(client: Any, trips: int, act: Callable[[], object]) -> Callable[[], float]:
    def seconds() -> float:
        began_s = time.perf_counter()
        for _ in range(trips):
            act()
        took_s = time.perf_counter() - began_s
        client.flushall()
        return took_s

    return seconds
