"""What an unreachable Redis costs the requests served meanwhile: paired periods on one CPU server.

Requests are answered whole, several at a time, in alternating periods with Redis running and with Redis stopped by
SIGSTOP: it accepts connections and answers nothing, which is the hardest outage to handle. A failed request ends the
run. Prints the p99 of the time per output token as paired ratios, and what became of every trace.

    python -m paceline.benchmarks.outage [--seconds 60] [--periods 3] [--concurrency 4] [--data-dir .paceline]
"""

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console

from ..rig.deployment import LocalDeployment
from ..rig.models.target import ensure_random_draft, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.processes import ending_signals
from ..rig.progress import progress_bar
from ..rig.prompts import Prompt
from ..rig.ratio import ratio
from ..rig.runs import machine
from ..rig.services import Service
from .measure.answers import answer_all, asks
from .measure.command_line import benchmark_parser
from .measure.measured_server import MeasuredServer, held_out_prompts, wait_until
from .measure.services import cpu_server, running

# requests per slot in one call, so that all slots stay busy to the end
MAX_TOKENS = 48
SEED = 0
CROWDS = 4


def main() -> None:
    """Measure and print."""
    options = parse()
    console = Console()
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    draft = ensure_random_draft(target.folder, options.data_dir / "drafts" / target.key, SEED)
    prompts = held_out_prompts(target, CROWDS * options.concurrency, SEED)
    with tempfile.TemporaryDirectory() as scratch:
        local = LocalDeployment.on_free_ports(Path(scratch))
        with running(local, cpu_server(local, target, draft), [draft]) as services:
            period(services.server, prompts, options.concurrency, 5.0)  # warms up
            running_ms, stopped_ms, requests = measure(services.server, services.redis, prompts, options)
            print_results(console, services.server, running=running_ms, stopped_ms=stopped_ms, requests=requests)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("outage", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of one period (60)")
    parser.add_argument("--periods", type=int, default=3, help="periods of each kind (3)")
    parser.add_argument("--concurrency", type=int, default=4, help="requests in flight (4)")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target and draft")
    return parser.parse_args()


def measure(
    server: MeasuredServer, redis: Service, prompts: Sequence[Prompt], options: argparse.Namespace
) -> tuple[list[float], list[float], int]:
    """p99 milliseconds per token by period, with Redis running and with Redis stopped; and the requests answered."""
    running_ms = []
    stopped_ms = []
    requests = 0
    with progress_bar("measuring", Console()) as report:
        for number in range(options.periods):
            report(number / options.periods, f"{number} of {options.periods} pairs")
            times = period(server, prompts, options.concurrency, options.seconds)
            with stopped(redis):
                others = period(server, prompts, options.concurrency, options.seconds)
            wait_until(lambda: server.reader.replica_status().buffer_error == "", "the replica to find Redis again")
            server.drained()
            running_ms.append(float(np.percentile(times, 99)))
            stopped_ms.append(float(np.percentile(others, 99)))
            requests += len(times) + len(others)
    return running_ms, stopped_ms, requests


def period(server: MeasuredServer, prompts: Sequence[Prompt], concurrency: int, seconds: float) -> list[float]:
    """Milliseconds per output token of every request answered in about `seconds`. A failed request raises."""
    ends = time.monotonic() + seconds
    times = []
    while time.monotonic() < ends:
        done = answer_all(server.url, asks(prompts, "outage", MAX_TOKENS), concurrency)
        times += [1e3 * each.meta["e2e_latency"] / len(each.output_ids) for each in done.answers]
    return times


@contextmanager
def stopped(redis: Service) -> Iterator[None]:
    """Stop Redis during the body: it accepts connections and answers nothing."""
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(redis.pid, signal.SIGCONT)


def print_results(
    console: Console, server: MeasuredServer, *, running: list[float], stopped_ms: list[float], requests: int
) -> None:
    """Print the ratio and what became of the traces."""
    traces = server.drained().account
    console.print(f"machine: {machine()}; seed {SEED}", soft_wrap=True)
    console.print(f"{requests} requests answered; a failed one would have ended this run")
    console.print(
        f"p99 of milliseconds per token, Redis stopped / running, paired: {ratio(stopped_ms, running).text()}",
        soft_wrap=True,
    )
    console.print(
        f"traces captured {traces.captured}, delivered {traces.delivered}, dropped {traces.dropped}", soft_wrap=True
    )


if __name__ == "__main__":
    with ending_signals():
        main()
