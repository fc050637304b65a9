"""Longest wait for a token around a draft swap: paceline's swap against SGLang's stock HTTP path, in one run.

Three requests stream on a CPU server, with paceline or without. benchmarks/measure/stalls.py describes the swaps, and
how they are timed.

    python -m paceline.benchmarks.swap [--repeats 10] [--data-dir .paceline]
"""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from ..rig.deployment import LocalDeployment
from ..rig.models.target import ensure_random_draft, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.processes import ending_signals
from ..rig.progress import progress_bar
from ..rig.runs import machine
from .measure.command_line import benchmark_parser
from .measure.measured_server import held_out_prompts
from .measure.services import cpu_server, running
from .measure.stalls import StallPlan, Stalls, measure_stalls

DRAFTS = 3  # more than a replica keeps, so that every swap reads and checks a file


def main() -> None:
    """Measure and print."""
    options = parse()
    plan = StallPlan(repeats=options.repeats)
    console = Console()
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    folder = options.data_dir / "drafts"
    drafts = [ensure_random_draft(target.folder, folder / f"{target.key}-{seed}", seed) for seed in range(DRAFTS)]
    prompts = held_out_prompts(target, plan.streams, plan.seed)
    with tempfile.TemporaryDirectory() as scratch:
        local = LocalDeployment.on_free_ports(Path(scratch))
        stock = LocalDeployment.on_free_ports(Path(scratch) / "stock")
        bare = cpu_server(stock, target, drafts[0], env={"PACELINE_REDIS_URL": ""})
        with running(local, cpu_server(local, target, drafts[0]), drafts) as services, bare:
            print_stalls(
                console,
                measure_stalls(services.server, stock_url=stock.server_url, drafts=drafts, prompts=prompts, plan=plan),
            )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("swap", __doc__)
    parser.add_argument("--repeats", type=int, default=10, help="swaps of each kind (10)")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target and drafts")
    return parser.parse_args()


def print_stalls(console: Console, stalls: Stalls) -> None:
    """Print the longest wait of each kind of swap, and what the swap cost the scheduler."""
    plan = stalls.plan
    console.print(
        f"machine: {machine()}; {plan.repeats} repeats ({stalls.void} void), seed {plan.seed}, "
        f"{plan.streams} streams of {plan.max_tokens} tokens"
    )
    for way, wait_ms in stalls.waits_ms.items():
        console.print(f"{way}: longest wait for a token, median {wait_ms.text(1)} ms")
    console.print(f"paceline's commit in the scheduler: median {stalls.commit_ms.text(2)} ms")
    console.print(f"paceline / stock HTTP, paired: median {stalls.ratio.text(2)}")


if __name__ == "__main__":
    with ending_signals():
        main()
