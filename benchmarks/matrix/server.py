"""The server of one row, on the CPU host and on a Redis that all rows share."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.board.speculation import NGRAM
from ...buffer.config import BufferConfig
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...rig.reader import SpeculatorReader
from ...rig.readiness import free_port
from ...rig.services import Service, sglang_service
from ..measure.measured_server import MeasuredServer
from .rows import Row

REPLICA = "compatibility-0"
#: The plugin's line in the server's log. `paceline doctor` would say the same, and take as long as a start of SGLang.
_NO_REPLAY = re.compile(r"paceline: (.+); a learned draft goes live after a canary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How one row's server is started: SGLang's flags, its settings, its speculator, and where its log is."""

    flags: Sequence[str]
    env: Mapping[str, str]
    speculator: str
    redis_url: str
    log: Path

    def with_settings(self, more: Mapping[str, str]) -> Self:
        """The same with more settings in its environment."""
        return replace(self, env={**self.env, **more})


def start_of(row: Row, number: int, *, target: Path, draft: str, redis_url: str, log: Path) -> Start:
    """How to start the server of `row`, the `number`-th on this Redis, with `draft` as SGLang is to name it."""
    named = [] if row.head == NGRAM else ["--speculative-draft-model-path", draft]
    flags = [
        "--model-path", str(target), "--device", "cpu", "--log-level", "warning", "--context-length", "1024",
        "--speculative-algorithm", row.algorithm, *named, *row.flags.split(),
    ]  # fmt: skip
    speculator = f"row-{number}"
    env = {
        "PACELINE_CONFIG": os.devnull,  # not the operator's own file
        "PACELINE_REDIS_URL": redis_url,
        "PACELINE_SPECULATOR": speculator,
        "PACELINE_REPLICA": REPLICA,
        "PACELINE_TARGET": row.family,
        "OMP_NUM_THREADS": "1",
    }
    return Start(flags=flags, env=env, speculator=speculator, redis_url=redis_url, log=log)


@contextmanager
def running(start: Start) -> Iterator[MeasuredServer]:
    """Start the server and, at the end, kill it: how it shuts down is not in question here. Raises as Service does."""
    port = free_port()
    service: Service = sglang_service(start.flags, port, log=start.log, env=start.env)
    with closing(connect(start.redis_url)) as client, service:
        config = BufferConfig(speculator=start.speculator)
        buffer = RedisTraceBuffer(client, config)
        board = RedisVersionBoard(client, config)
        reader = SpeculatorReader(buffer, board, REPLICA, learner="none")
        yield MeasuredServer(f"http://127.0.0.1:{port}", buffer, board, reader)
        service.kill()


def why_no_replay(log: Path) -> str:
    """What the server whose log this is has against judging drafts by replay; empty when it said nothing."""
    said = _NO_REPLAY.search(log.read_text(encoding="utf-8", errors="replace"))
    return said.group(1) if said else ""
