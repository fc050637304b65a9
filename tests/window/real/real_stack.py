"""What a user runs, each as a real process: Redis, SGLang, a learner, the live page, the exporter and Prometheus."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from monitoring import exporter_service, prometheus_service
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_client import connect
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.rig.deployment import server_flags
from paceline.rig.models.corpus import load_corpus
from paceline.rig.reader import drain_check
from paceline.rig.readiness import free_port
from paceline.rig.services import Service, learner_service, redis_service, sglang_service, window_service
from waiting import until

SPECULATOR = "real"
REPLICA, LEARNER = "replica:real-0", "learner:real-learner"
#: Where the learner says that MLflow's pages are; nobody is asked there.
MLFLOW_PAGES = "http://127.0.0.1:9/mlflow"
MIN_TEXT_CHARS = 3000


@dataclass
class RealStack:
    """The processes, their addresses, and ways to ask them as users do."""

    folder: Path
    target: Path
    draft: Path
    redis: Service
    server: Service
    learner: Service
    board: RedisVersionBoard
    buffer: RedisTraceBuffer
    env: Mapping[str, str]
    port: int
    page_port: int
    exporter_port: int
    prometheus_port: int
    texts: list[str] = field(default_factory=list)  # held-out source code, one file each

    @property
    def page_url(self) -> str:
        return f"http://127.0.0.1:{self.page_port}/"

    def command(self, *words: str, said: str = "") -> subprocess.CompletedProcess[str]:
        """`paceline ...` as a user runs it, who may say something on stdin."""
        line = [sys.executable, "-m", "paceline.cli", *words]
        run = partial(subprocess.run, capture_output=True, text=True, timeout=60, check=False)
        return run(line, env={**os.environ, **self.env, "COLUMNS": "200"}, input=said)

    def panel(self, name: str, **asked: int) -> Any:
        """A panel of the page as JSON."""
        return get(self.page_port, f"/api/{name}.json", **asked).json()

    def metrics(self) -> str:
        return get(self.exporter_port, "/metrics").text

    def firing(self) -> list[dict[str, str]]:
        """Labels of the alerts that fire in Prometheus."""
        found = get(self.prometheus_port, "/api/v1/alerts").json()["data"]["alerts"]
        return [alert["labels"] for alert in found if alert["state"] == "firing"]

    def generate(self, rid: str, text: str, max_tokens: int = 64, **sampling: Any) -> dict[str, Any]:
        """One greedy request, answered whole."""
        params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": max_tokens, **sampling}
        body = {"rid": rid, "text": text, "sampling_params": params}
        reply = httpx.post(f"http://127.0.0.1:{self.port}/generate", json=body, timeout=300.0, trust_env=False)
        return json.loads(reply.content)

    def wave(self, name: str, count: int) -> list[dict[str, Any]]:
        """`count` labelled requests, the same for every name; answers in their order."""
        jobs = [(f"{name}-{i}", self.texts[i][100:260], 64) for i in range(count)]
        labelled = {"custom_params": {"paceline_label": "py"}}
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda job: self.generate(*job, **labelled), jobs))

    def status(self) -> MemberStatus:
        """The replica's last heartbeat; empty while it is silent."""
        return self.board.heartbeats().get(REPLICA, MemberStatus())

    def drained(self) -> MemberStatus:
        """The same once every trace of the requests answered so far has left the server."""
        until(drain_check(self.status), "the server to deliver its traces")
        return self.status()

    def kill_sglang(self) -> None:
        """kill -9 of SGLang's own process, as a user or the kernel would; `paceline serve` sees to the rest."""
        (sglang,) = psutil.Process(self.server.pid).children()
        sglang.kill()
        until(lambda: not self.server.is_running(), "the server to end")


def get(port: int, path: str, **asked: int) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{port}{path}", params=asked, timeout=30.0, trust_env=False)


def settings(folder: Path, target: Path, draft: Path, redis_url: str) -> dict[str, str]:
    """Of server, learner and commands; the learner says where MLflow's pages are and never has enough to learn from."""
    return {
        "PACELINE_CONFIG": "/dev/null",
        "PACELINE_REDIS_URL": redis_url,
        "PACELINE_SPECULATOR": SPECULATOR,
        "PACELINE_TARGET": "e2e-target",
        "PACELINE_REPLICA": REPLICA.partition(":")[2],
        "PACELINE_LEARNER": LEARNER.partition(":")[2],
        "PACELINE_TARGET_PATH": str(target),
        "PACELINE_DRAFT": str(draft),
        "PACELINE_DATA_DIR": str(folder),
        "PACELINE_MLFLOW_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "PACELINE_MLFLOW_PAGES": MLFLOW_PAGES,
        "PACELINE_MIN_NEW_TRACES": "100000",
        "PACELINE_MAX_WAIT_S": "0",
        "PACELINE_ROUND_INTERVAL_S": "1.0",
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def real_stack(folder: Path, models: tuple[Path, Path]) -> Iterator[RealStack]:
    """Everything but the learner runs, and the server drafts with the draft it was started with."""
    (target, draft), redis_port = models, free_port()
    url = f"redis://127.0.0.1:{redis_port}/0"
    env = settings(folder, target, draft, url)
    port, page_port, exporter_port, prometheus_port = (free_port() for _ in range(4))
    # Without it, a request could meet the cache of a prefix that another draft has filled.
    flags = [*server_flags(target, draft), "--disable-radix-cache"]
    server = sglang_service(flags, port, log=folder / "sglang.log", env=env)
    learner = learner_service(log=folder / "learner.log", env=env)
    with ExitStack() as entered:
        redis = entered.enter_context(redis_service(folder / "redis", redis_port))
        entered.enter_context(window_service(page_port, log=folder / "window.log", env=env))
        entered.enter_context(exporter_service(exporter_port, url, log=folder / "exporter.log", env=env))
        entered.enter_context(prometheus_service(folder / "prometheus", prometheus_port, exporter_port))
        server.start()
        entered.callback(server.stop)
        entered.callback(server.kill)
        client = entered.enter_context(connect(url))
        config = BufferConfig(speculator=SPECULATOR)
        board, buffer = RedisVersionBoard(client, config), RedisTraceBuffer(client, config)
        texts = [text for text in load_corpus(("py",))["py"].held_out if len(text) > MIN_TEXT_CHARS]
        made = RealStack(
            folder, target, draft, redis, server, learner, board, buffer, env, port, page_port, exporter_port,
            prometheus_port, texts,
        )  # fmt: skip
        until(lambda: made.status().capture == "on", "the replica's first heartbeat")
        yield made
        learner.stop()
