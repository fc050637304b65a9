"""One of the servers that are compared, an arm: what it drafts with, who chooses how many drafts, and who learns."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..deployment import LocalDeployment, paced_flags, plain_flags, server_flags
from ..models.target import TargetModel
from ..readiness import free_port
from ..services import Service, sglang_service

#: Draft steps that a paced server chooses among.
PACED_STEPS = (0, 1, 2, 3, 4, 5)
#: Servers that start at the same time: each needs a core, and more of them need longer than one after the other.
_STARTING = 2


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of serving the target; its name is that of its speculator too."""

    name: str
    draft: Path | None  # None: it never loads one
    is_paced: bool = False  # by paceline's default policy; else SGLang's number of steps, which stays the same
    is_captured: bool = False

    @property
    def needs_paceline(self) -> bool:
        """Return whether paceline does anything on this server; else its plugin installs no hook."""
        return self.is_paced or self.is_captured

    @property
    def replica(self) -> str:
        """Its name on the board."""
        return f"{self.name}-0"


@dataclass(frozen=True, slots=True)
class ArmServer:
    """A running server."""

    arm: Arm
    service: Service
    url: str


@contextmanager
def running_arms(
    arms: Sequence[Arm], target: TargetModel, local: LocalDeployment, more_flags: Sequence[str] = ()
) -> Iterator[dict[str, ArmServer]]:
    """Start all servers, each with `more_flags` of SGLang's, and stop them at the end; raises as Service does.

    Those that capture or pace need a Redis that runs at `local.redis_url`. A server that is asked nothing sleeps.
    """
    with ExitStack() as stack, ThreadPoolExecutor(_STARTING) as starting:
        servers = {arm.name: _server(arm, target, local, more_flags) for arm in arms}
        for server in servers.values():
            stack.callback(server.service.stop)
        list(starting.map(lambda server: server.service.start(), servers.values()))
        yield servers


def _server(arm: Arm, target: TargetModel, local: LocalDeployment, more_flags: Sequence[str] = ()) -> ArmServer:
    port = free_port()
    flags = plain_flags(target.folder) if arm.draft is None else server_flags(target.folder, arm.draft)
    if arm.is_paced:
        flags += paced_flags(local.folder, PACED_STEPS)
    env = local.shared_env(target) | {"PACELINE_SPECULATOR": arm.name, "PACELINE_REPLICA": arm.replica}
    env |= {} if arm.is_captured else {"PACELINE_SAMPLE_RATE": "0"}
    env |= {} if arm.needs_paceline else {"PACELINE_REDIS_URL": ""}
    # An idle scheduler spins, and would take a core from the server that is asked.
    log = local.folder / "logs" / f"{arm.name}.log"
    service = sglang_service([*flags, *more_flags, "--sleep-on-idle"], port, log=log, env=env)
    return ArmServer(arm, service, f"http://127.0.0.1:{port}")
