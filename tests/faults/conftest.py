"""A real SGLang server that may be killed and started again, with a private Redis beside it."""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from in_memory import redis_in_memory
from made_versions import version_in
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version import VersionState
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.redis_client import client_for
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.buffer.stream.trace import DraftTrace
from paceline.rig.models.corpus import load_corpus
from paceline.rig.models.target import ensure_random_draft
from paceline.rig.reader import drain_check
from paceline.rig.readiness import free_port, is_healthy
from paceline.rig.services import Service
from waiting import until

sys.path.append(str(Path(__file__).parent))  # for killable_server

SCRIPT = Path(__file__).with_name("killable_server.py")
CONFIG = BufferConfig(speculator="faults")
REPLICA = "faults-0"
STEPS = 3
KV_TOKENS = 8192
MIN_TEXT_CHARS = 3000


@dataclass
class KillableReplica:
    """A server that is killed and started again under one name on one board."""

    folder: Path
    target: Path
    draft: Path
    redis: Service
    redis_url: str
    buffer: RedisTraceBuffer
    board: RedisVersionBoard
    texts: list[str]
    port: int = 0
    server: Service | None = None
    calls: dict[str, list[int]] = field(default_factory=dict)  # request id -> what was answered
    more_flags: tuple[str, ...] = ()

    def ensure_running(self) -> None:
        """Have a server that drafts with the live version; the one that runs, if one does."""
        if self.server is None or not self.server.is_running():
            self.end()
            began = time.time()
            self.port = free_port()
            self.server = self._service()
            self.server.start()
            until(lambda: (self.status().at or 0.0) > began and self.is_well(), "the replica's first heartbeat")
        until(self.follows_the_board, "the server to draft with the live version")

    @contextmanager
    def dying_at(self, point: str) -> Iterator[None]:
        """The running server dies, or fails, at `point` of killable_server.POINTS or PLANTS while the body runs."""
        self._point_file.write_text(point, encoding="utf-8")
        try:
            yield
        finally:
            self._point_file.unlink()

    @property
    def _point_file(self) -> Path:
        return self.folder / "point"

    def _service(self) -> Service:
        env = {
            "PACELINE_REDIS_URL": self.redis_url,
            "PACELINE_SPECULATOR": CONFIG.speculator,
            "PACELINE_REPLICA": REPLICA,
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(SCRIPT), str(self._point_file)]
        return Service(
            "SGLang server",
            [*command, "--host", "127.0.0.1", "--port", str(self.port), *self._flags()],
            log=self.folder / "sglang.log",
            is_ready=lambda _: is_healthy(self.port),
            start_limit_s=600.0,
            env=env,
        )

    def _flags(self) -> list[str]:
        return [
            "--model-path", str(self.target), "--device", "cpu", "--log-level", "warning",
            "--max-total-tokens", str(KV_TOKENS), "--max-running-requests", "8", "--context-length", "1024",
            "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(self.draft),
            "--speculative-num-steps", str(STEPS), "--speculative-eagle-topk", "1",
            "--speculative-num-draft-tokens", str(STEPS + 1), *self.more_flags,
        ]  # fmt: skip

    def end(self) -> None:
        """Shut the server down cleanly, if one runs."""
        if self.server is not None:
            self.server.stop()
        self.server = None

    def has_died(self) -> bool:
        """Whether the server's own processes are gone; what is left of it ends itself."""
        return self.server is not None and not self.server.is_running()

    def status(self) -> MemberStatus:
        """The replica's last heartbeat; empty while it or Redis is silent."""
        try:
            return self.board.heartbeats().get(f"replica:{REPLICA}", MemberStatus())
        except BufferUnavailable:
            return MemberStatus()

    def is_well(self) -> bool:
        status = self.status()
        return status.capture == "on" and status.buffer_error == "" and status.swap == "on"

    def follows_the_board(self) -> bool:
        return self.status().draft_version == (self.board.read().live or 0)

    def drained(self) -> MemberStatus:
        """The status once every trace of the requests answered so far has left; its counts add up."""
        until(drain_check(self.status), "the server to deliver its traces")
        status = self.status()
        assert status.account.captured == status.account.delivered + sum(status.account.dropped.values())
        return status

    def publish(self, seed: int, number: int | None = None) -> int:
        """Register a random draft as a candidate; drafts of two seeds share no parameter."""
        folder = self.folder / f"draft-{seed}"
        if number == 0:
            folder = self.draft
        else:
            ensure_random_draft(self.target, folder, seed=seed)
        made = self.board.next_number()
        assert number in {None, made}
        version = version_in(folder, made, target_version="0")
        self.board.register(version, "test", f"seed {seed}")
        return made

    def generate(self, rid: str, text: str, max_tokens: int) -> list[int] | None:
        """The tokens of one greedy request; None when the server died of it."""
        params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": max_tokens}
        body = {"rid": rid, "text": text, "sampling_params": params}
        try:
            reply = httpx.post(f"http://127.0.0.1:{self.port}/generate", json=body, timeout=120.0, trust_env=False)
            answer = json.loads(reply.content)["output_ids"]
        except (httpx.HTTPError, ValueError, KeyError):
            return None
        self.calls[rid] = answer
        return answer

    @contextmanager
    def asking(self, jobs: list[tuple[str, str, int]]) -> Iterator[list[Future]]:
        """All of `jobs` at once, beside the body; they have ended, one way or another, when it is left."""
        with ThreadPoolExecutor(len(jobs)) as pool:
            yield [pool.submit(self.generate, *job) for job in jobs]

    def answers(self, jobs: list[tuple[str, str, int]]) -> list[list[int] | None]:
        with self.asking(jobs) as futures:
            return [future.result() for future in futures]

    def traces(self) -> list[DraftTrace]:
        """All traces the buffer holds, oldest first."""
        return [entry.trace for entry in self.buffer.replay(100_000)]

    def lose_redis(self) -> None:
        """kill -9 of Redis; it comes back without its data."""
        self.redis.kill()
        shutil.rmtree(self.redis.log.parent)
        self.redis.start()


@pytest.fixture(scope="session")
def replica(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableReplica]:
    """Redis and the server run; version 0, the draft the server was started with, is live."""
    with replica_in(tmp_path_factory.mktemp("replica"), models) as made:
        yield made


@pytest.fixture(scope="session")
def start_replica() -> Any:
    """`replica_in`, for tests that need a server of their own."""
    return replica_in


@contextmanager
def replica_in(folder: Path, models: tuple[Path, Path], **fields: Any) -> Iterator[KillableReplica]:
    """Such a replica, with its Redis, in `folder`; `fields` are further ones of KillableReplica."""
    target, draft = models
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    texts = [text for text in load_corpus(("py",))["py"].held_out if len(text) > MIN_TEXT_CHARS]
    with redis_in_memory(port) as redis, closing(client_for(url, timeout_s=30.0)) as client:
        buffer = RedisTraceBuffer(client, CONFIG)
        board = RedisVersionBoard(client, CONFIG)
        made = KillableReplica(folder, target, draft, redis, url, buffer, board, texts, **fields)
        try:
            made.publish(seed=0, number=0)
            made.board.move(0, VersionState.LIVE, "test", "served from the start")
            made.ensure_running()
            yield made
        finally:
            made.end()
