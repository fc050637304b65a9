"""A Redis and an SGLang server of one benchmark on this machine, started together and stopped together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...rig.deployment import LocalDeployment, server_flags
from ...rig.models.target import TargetModel
from ...rig.services import Service, redis_service, sglang_service
from .measured_server import MeasuredServer, measured_server


@dataclass(frozen=True, slots=True)
class MeasuredServices:
    """A running server as benchmarks use it, and the two processes it consists of."""

    server: MeasuredServer
    redis: Service
    sglang: Service


def cpu_server(
    local: LocalDeployment,
    target: TargetModel,
    draft: Path,
    *,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Service:
    """The demo's server, not yet started, that drafts with `draft`; `flags` and `env` override its own."""
    return sglang_service(
        [*server_flags(target.folder, draft), *flags],
        local.server_port,
        log=local.folder / "sglang.log",
        env=local.shared_env(target) | dict(env or {}),
    )


@contextmanager
def running(local: LocalDeployment, sglang: Service, drafts: Sequence[Path]) -> Iterator[MeasuredServices]:
    """Start a Redis and `sglang`, and put `drafts` on the board, the one that the server drafts with first.

    Blocks until both are ready and, at the end, until both are stopped. Raises as Service does.
    """
    with redis_service(local.folder / "redis", local.redis_port) as redis, sglang:
        yield MeasuredServices(measured_server(local, drafts), redis, sglang)
