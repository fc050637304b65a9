"""The real SGLang server on the CPU host, with a private Redis: started once, shared by all end-to-end tests."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from paceline.buffer.base import TraceBuffer, VersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_board import RedisVersionBoard
from paceline.buffer.redis_client import connect
from paceline.buffer.redis_stream import RedisTraceBuffer
from paceline.buffer.trace import DraftTrace
from paceline.demo.corpus import load_corpus
from paceline.demo.services import Service, free_port, redis_service, sglang_service
from paceline.demo.target import ensure_random_draft, ensure_target
from paceline.demo.training import TrainPlan
from paceline.demo.watch import drained

REPLICA = "e2e-0"
TARGET = "e2e-target"
STEPS = 3
CONFIG = BufferConfig(speculator="e2e")
#: Small enough that eight long requests do not fit, so that SGLang must retract.
KV_TOKENS = 2048
#: Tests cut their prompts out of the first characters of held-out files.
MIN_TEXT_CHARS = 3000
#: Smaller than some prompts, so that they are prefilled in chunks.
CHUNK_TOKENS = 64


@dataclass
class Rig:
    """Everything a test may want to touch."""

    folder: Path
    target: Path
    draft: Path
    redis: Service
    redis_url: str
    port: int
    buffer: TraceBuffer
    board: VersionBoard
    texts: list[str] = field(default_factory=list)  # held-out source code, one file each
    steps: int = STEPS
    chunk_tokens: int = CHUNK_TOKENS

    @staticmethod
    def until(is_so: Callable[[], object], what: str, limit_s: float = 60.0) -> None:
        """Wait for a condition of another process; fail, saying what was waited for, after `limit_s`."""
        deadline, pause = time.monotonic() + limit_s, threading.Event()
        while not is_so():
            assert time.monotonic() < deadline, f"waited {limit_s} s in vain: {what}"
            pause.wait(0.05)

    def generate(self, rid: str, text: str, max_tokens: int = 32, **sampling: Any) -> dict[str, Any]:
        """One request, answered whole."""
        body = request_body(rid, text, max_tokens, **sampling)
        reply = httpx.post(f"http://127.0.0.1:{self.port}/generate", json=body, timeout=300.0, trust_env=False)
        return json.loads(reply.content)

    def generate_all(self, jobs: list[dict[str, Any]], concurrency: int = 8) -> list[dict[str, Any]]:
        """Several requests at a time, answers in the order of `jobs`."""
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda job: self.generate(**job), jobs))

    def drained(self) -> dict[str, Any]:
        """The replica's reading once every trace of the requests answered so far has left the server."""
        self.until(drained(self.reading), "the server to deliver its traces")
        return self.reading()

    def reading(self) -> dict[str, Any]:
        """What the replica said last; empty while it is silent."""
        return dict(self.board.heartbeats().get(f"replica:{REPLICA}", {}))

    def traces_of(self, rid: str) -> list[DraftTrace]:
        """All traces of one request, oldest first."""
        return [entry.trace for entry in self.buffer.replay(10_000) if entry.trace.request_id == rid]


def request_body(rid: str, text: str, max_tokens: int, **sampling: Any) -> dict[str, Any]:
    """Body of /generate; greedy, and EOS ends nothing unless asked for."""
    params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": max_tokens, **sampling}
    return {"rid": rid, "text": text, "sampling_params": params}


def flags(target: Path, draft: Path) -> list[str]:
    """SGLang's flags of the shared server."""
    return [
        "--model-path", str(target), "--device", "cpu", "--log-level", "warning",
        "--max-total-tokens", str(KV_TOKENS), "--max-running-requests", "8", "--context-length", "1024",
        "--chunked-prefill-size", str(CHUNK_TOKENS), "--speculative-algorithm", "EAGLE3",
        # Admits requests without keeping room for what they will generate, however far apart they arrive.
        "--schedule-conservativeness", "0.1",
        "--speculative-draft-model-path", str(draft), "--speculative-num-steps", str(STEPS),
        "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(STEPS + 1),
    ]  # fmt: skip


def server_env(redis_url: str) -> dict[str, str]:
    """Settings of the shared server."""
    return {
        "PACELINE_REDIS_URL": redis_url,
        "PACELINE_SPECULATOR": CONFIG.speculator,
        "PACELINE_REPLICA": REPLICA,
        "PACELINE_TARGET": TARGET,
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target trained for seconds, and a random draft of it."""
    folder = tmp_path_factory.mktemp("models")
    target = ensure_target(folder, TrainPlan(seconds=25.0)).folder
    return target, ensure_random_draft(target, folder / "draft", seed=0)


@pytest.fixture(scope="session")
def rig(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The running server."""
    target, draft = models
    folder = tmp_path_factory.mktemp("rig")
    redis_port, port = free_port(), free_port()
    url = f"redis://127.0.0.1:{redis_port}/0"
    server = sglang_service(flags(target, draft), port, log=folder / "sglang.log", env=server_env(url))
    with redis_service(folder / "redis", redis_port) as redis, server:
        client = connect(url)
        made = Rig(
            folder, target, draft, redis, url, port, RedisTraceBuffer(client, CONFIG), RedisVersionBoard(client, CONFIG)
        )
        made.texts = [text for text in load_corpus(("py",))["py"].held_out if len(text) > MIN_TEXT_CHARS]
        made.until(lambda: made.reading().get("capture") == "on", "the replica's first heartbeat")
        yield made
        client.close()
