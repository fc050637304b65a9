"""The services of one run: Redis behind Sentinels, S3, a learner, servers without a shared disk, SGLang's router."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.config import BufferConfig
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...rig.deployment import LEARNER, SPECULATOR, LocalDeployment, server_flags
from ...rig.models.target import TargetModel
from ...rig.progress import progress_bar, quiet
from ...rig.reader import SpeculatorReader
from ...rig.readiness import free_port
from ...rig.sentinels import SentinelRedis, redis_behind_sentinels
from ...rig.services import (
    learner_service,
    router_service,
    s3_env,
    s3_service,
    sglang_service,
    window_service,
)
from ..run import REDIS_PATIENCE_S, learner_env
from ..stages import Running

BUCKET = "drafts"
#: A Redis that is silent for so long is dead. By half a second, as in tests, it may be on a busy machine and live.
_DOWN_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """The running services, as each replica's, by its name; all share Redis, learner and router."""

    replicas: Mapping[str, Running]
    url: str  # of the router
    store: str  # of versions
    redis: SentinelRedis

    @property
    def first(self) -> Running:
        """A replica, for what is the same for all: services, buffer and board."""
        return next(iter(self.replicas.values()))


@contextmanager
def fleet_services(
    local: LocalDeployment, target: TargetModel, draft: Path, *, pythons: Sequence[str], console: Console
) -> Iterator[Fleet]:
    """Everything a run needs, with its files in the folder of `local`; nothing is left running.

    There is a server for each interpreter in `pythons`. The router has the port of the server in `local`. PacelineError
    as Service says.
    """
    store_port = free_port()
    store = f"s3://{BUCKET}"
    logs = local.folder / "logs"
    names = [f"demo-{number}" for number in range(len(pythons))]
    with ExitStack() as stack:
        redis = stack.enter_context(redis_behind_sentinels(local.folder / "redis", down_after_s=_DOWN_AFTER_S))
        shared = local.shared_env(target) | s3_env(store_port)
        shared |= {"PACELINE_REDIS_URL": redis.url, "PACELINE_VERSIONS_URI": store}
        client = stack.enter_context(connect(redis.url, timeout_s=REDIS_PATIENCE_S))
        s3 = stack.enter_context(s3_service(store_port, BUCKET, log=logs / "s3.log"))
        page_port = free_port()
        stack.enter_context(window_service(page_port, log=logs / "window.log", env=shared))
        console.print(f"live page, from now on: http://127.0.0.1:{page_port}/", highlight=False)
        ports = [free_port() for _ in names]
        flags = server_flags(target.folder, draft)
        with progress_bar(f"starting {len(names)} SGLang servers", console) as report:
            servers = [
                sglang_service(
                    flags,
                    port,
                    log=logs / f"{name}.log",
                    env=shared | {"PACELINE_REPLICA": name, "PACELINE_CACHE_DIR": str(local.folder / name)},
                    report=report if name == names[0] else quiet,
                    python=python,
                )
                for name, port, python in zip(names, ports, pythons, strict=True)
            ]
            with ThreadPoolExecutor(len(names)) as pool:  # all at once: what they wait for is seldom the processor
                [*pool.map(stack.enter_context, servers)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        router = stack.enter_context(router_service(urls, local.server_port, free_port(), log=logs / "router.log"))
        with progress_bar("starting the learner", console) as report:
            env = shared | learner_env(local, target, draft)
            learner = stack.enter_context(learner_service(log=logs / "learner.log", env=env, report=report))
        config = BufferConfig(speculator=SPECULATOR)
        buffer = RedisTraceBuffer(client, config)
        board = RedisVersionBoard(client, config)
        services = (*redis.sentinels, redis.replica, s3, *servers, router, learner)  # the primary will be killed
        running = {name: Running(services, SpeculatorReader(buffer, board, name, LEARNER), buffer) for name in names}
        yield Fleet(running, local.server_url, f"{store}/{SPECULATOR}", redis)
