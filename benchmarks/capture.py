"""Tokens per second with capture on against capture off, in paired alternating runs.

Two SGLang servers with the same flags and the same draft, one with the plugin and one without it, are measured
in turns. On the server that captures, requests that opt out are measured as well. Two equal servers differ by a few per
cent for as long as they run, and the one started later tends to be faster: so the pair is started several times, each
server first in turns, and the intervals are over starts. While one server is measured the other
is stopped with SIGSTOP, because an idle SGLang scheduler spins. The draft is random, so nearly every token costs a
verify round: the worst case for capture. Answers are not streamed, because the client shares the server's cores. Prints
ratios per concurrency.

    python -m paceline.benchmarks.capture [--starts 4] [--rounds 8] [--data-dir .paceline]
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean

from rich.console import Console

from ..rig.deployment import LocalDeployment, server_flags
from ..rig.models.target import TargetModel, ensure_random_draft, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.processes import ending_signals
from ..rig.progress import progress_bar
from ..rig.prompts import Prompt
from ..rig.ratio import ratio
from ..rig.readiness import free_port
from ..rig.runs import machine
from ..rig.services import Service, redis_service, sglang_service
from .measure.answers import answer_all, asks
from .measure.command_line import benchmark_parser
from .measure.measured_server import held_out_prompts
from .measure.paired import in_rounds
from .measure.processes import resumed, suspended

MAX_TOKENS = 96
#: Concurrency -> requests of one run. Short runs, many rounds: a shared machine drifts within seconds.
REQUESTS = {1: 1, 8: 8}
ON = "capture on"
OFF = "capture off"
OPTED_OUT = "opted out on the same server"
SEED = 0
#: After SIGCONT, for the work that became due while the server was stopped.
SETTLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Server:
    """One of the two servers."""

    service: Service
    port: int


def main() -> None:
    """Measure and print."""
    options = parse()
    console = Console()
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    draft = ensure_random_draft(target.folder, options.data_dir / "drafts" / target.key, SEED)
    prompts = held_out_prompts(target, max(REQUESTS.values()), SEED)
    with progress_bar("measuring", console) as report:
        found = []
        for start in range(options.starts):
            report(start / options.starts, f"{start} starts of {options.starts}")
            first = (ON, OFF)[start % 2]
            with pair(target, draft, first) as servers:
                found.append(measure(servers, prompts, options.rounds, SEED + start))
    console.print(f"machine: {machine()}; {options.starts} starts of {options.rounds} rounds, seed {SEED}")
    for concurrency in REQUESTS:
        print_ratios(concurrency, [rates[concurrency] for rates in found])


@contextmanager
def pair(target: TargetModel, draft: Path, first: str) -> Iterator[Mapping[str, Server]]:
    """The two servers and a Redis, `first` started first and both stopped."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        local = LocalDeployment.on_free_ports(Path(folder))
        running.enter_context(redis_service(local.folder / "redis", local.redis_port))
        servers = {name: server(local, target, draft, free_port(), capture=name == ON) for name in (ON, OFF)}
        for name in sorted(servers, key=lambda name: name != first):
            running.enter_context(servers[name].service)
            running.enter_context(suspended(servers[name].service.pid))
        yield servers


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("capture", __doc__)
    parser.add_argument("--starts", type=int, default=4, help="starts of the pair of servers (4)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds per start (8)")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target and draft")
    return parser.parse_args()


def server(local: LocalDeployment, target: TargetModel, draft: Path, port: int, *, capture: bool) -> Server:
    """One server; without PACELINE_REDIS_URL the plugin installs no hook."""
    env = local.shared_env(target)
    if not capture:
        env["PACELINE_REDIS_URL"] = ""
    flags = [*server_flags(target.folder, draft), "--disable-radix-cache"]  # every run prefills the same tokens
    return Server(sglang_service(flags, port, log=local.folder / f"{port}.log", env=env), port)


def measure(
    servers: Mapping[str, Server], prompts: Sequence[Prompt], rounds: int, seed: int
) -> dict[int, dict[str, float]]:
    """Concurrency -> name of the case -> geometric mean of the rates of its alternating runs."""
    found = {}
    for concurrency, requests in REQUESTS.items():
        ways = {name: partial(rate, each, prompts[:requests], concurrency) for name, each in servers.items()}
        ways[OPTED_OUT] = partial(ways[ON], capture=False)
        for warm_up in ways.values():
            warm_up()
        found[concurrency] = {name: geometric_mean(rates) for name, rates in in_rounds(ways, rounds, seed).items()}
    return found


def print_ratios(concurrency: int, starts: Sequence[Mapping[str, float]]) -> None:
    """Print how capture compares at one concurrency."""
    for other in (OFF, OPTED_OUT):
        found = ratio([rates[ON] for rates in starts], [rates[other] for rates in starts])
        print(f"concurrency {concurrency}, tokens per second, {ON} / {other}: {found.text()}", flush=True)


def rate(server: Server, prompts: Sequence[Prompt], concurrency: int, *, capture: bool = True) -> float:
    """Tokens per second of one run, the other servers stopped; exits when a request fails."""
    with resumed(server.service.pid):
        time.sleep(SETTLE_S)
        asked = asks(prompts, "capture", MAX_TOKENS, capture=capture)
        return answer_all(f"http://127.0.0.1:{server.port}", asked, concurrency).tokens_per_second


if __name__ == "__main__":
    with ending_signals():
        main()
