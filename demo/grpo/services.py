"""The services of one run: Redis, a server that takes new weights, a learner that follows them, and the door."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.board.version_board import VersionBoard
from ...buffer.config import BufferConfig
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...buffer.stream.trace_buffer import TraceBuffer
from ...rig.deployment import LEARNER, REPLICA, SPECULATOR, LocalDeployment, server_flags
from ...rig.models.target import TargetModel
from ...rig.progress import progress_bar
from ...rig.reader import SpeculatorReader
from ...rig.services import learner_service, redis_service, sglang_service
from ...serving.rollouts.rollouts import Rollouts
from ..run import REDIS_PATIENCE_S, learner_env

#: Requests that run at the same time, of the 64 of a step: the last ones then run in a small batch, as in practice.
RUNNING = 16


@dataclass(frozen=True, slots=True)
class GrpoServices:
    """The running services, and what reads from them."""

    rollouts: Rollouts
    buffer: TraceBuffer
    board: VersionBoard
    reader: SpeculatorReader


@contextmanager
def grpo_services(
    folder: Path, target: TargetModel, draft: Path, *, console: Console, more_flags: Sequence[str] = ()
) -> Iterator[GrpoServices]:
    """Everything a run needs, with its files in `folder`; nothing is left running. PacelineError as Service says."""
    local = LocalDeployment.on_free_ports(folder)
    shared = grpo_env(local, target)
    logs = folder / "logs"
    config = BufferConfig(speculator=SPECULATOR)
    with ExitStack() as stack:
        stack.enter_context(redis_service(folder / "redis", local.redis_port))
        client = stack.enter_context(connect(local.redis_url, timeout_s=REDIS_PATIENCE_S))
        with progress_bar("starting SGLang", console) as report:
            flags = [*grpo_flags(target.folder, draft), *more_flags]
            log = logs / "sglang.log"
            stack.enter_context(sglang_service(flags, local.server_port, log=log, env=shared, report=report))
        with progress_bar("starting the learner", console) as report:
            env = shared | grpo_learner_env(local, target, draft)
            stack.enter_context(learner_service(log=logs / "learner.log", env=env, report=report))
        rollouts = Rollouts(local.server_url, redis_url=local.redis_url, speculator=SPECULATOR)
        buffer = RedisTraceBuffer(client, config)
        board = RedisVersionBoard(client, config)
        reader = SpeculatorReader(buffer, board, REPLICA, LEARNER)
        yield GrpoServices(stack.enter_context(rollouts), buffer, board, reader)


def grpo_flags(target: Path, draft: Path) -> list[str]:
    """SGLang's flags; the last of a flag given twice counts. In float32, as the trainer computes."""
    return [*server_flags(target, draft), "--max-running-requests", str(RUNNING), "--dtype", "float32"]


def grpo_env(local: LocalDeployment, target: TargetModel) -> dict[str, str]:
    """Return the settings that server and learner must share. The trainer says the target version at every step."""
    shared = local.shared_env(target)
    return {name: value for name, value in shared.items() if name != "PACELINE_TARGET_VERSION"}


def grpo_learner_env(local: LocalDeployment, target: TargetModel, draft: Path) -> dict[str, str]:
    """Settings of a learner beside a trainer: it learns when asked to, and its versions go live on the one server."""
    return {
        **learner_env(local, target, draft),
        "PACELINE_MIN_NEW_TRACES": "1000000",
        "PACELINE_MAX_WAIT_S": "0",
        "PACELINE_ROUND_INTERVAL_S": "30",
        "PACELINE_CANARY_LIMIT_S": "0",
        "PACELINE_KEPT_VERSIONS": "1000",  # a record of the run has the weights of all
        "PACELINE_PASSES": "2",  # learner, server and trainer share two cores, and a round should end within a step
    }
