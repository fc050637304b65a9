"""Thousands of swaps under load on one CPU server: does anything grow, slow down, fail or get lost?

Requests stream all the time. Every swap is a version of its own, registered and made live on the board, so that the
previous one retires and the board's history grows by two events; two drafts are its weights in turns. The server
follows the board as usual. Versions go live without waiting for the server, at most a few ahead of what it reports;
a version that is replaced before it was swapped in does not count, and another one is made instead.

    python -m paceline.benchmarks.soak [--swaps 2000] [--gap-ms 100] [--concurrency 4] [--drafts A B] [--json FILE]
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from ..rig.deployment import LocalDeployment
from ..rig.models.target import TargetModel, ensure_random_draft, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.processes import ending_signals
from ..rig.progress import progress_bar
from ..rig.runs import machine
from .measure.command_line import benchmark_parser
from .measure.measured_server import held_out_prompts
from .measure.services import cpu_server, running
from .measure.soaking import Soak, SoakPlan, soak
from .measure.soaktable import table

SEED = 0
#: Small enough to fill up soon: from then on the stream is trimmed and Redis does not grow.
STREAM_BYTES = 64 << 20


def main() -> None:
    """Measure and print."""
    options = parse()
    console = Console()
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    drafts = options.drafts or random_drafts(target, options.data_dir)
    done = run(options, target, drafts, console)
    console.print(f"machine: {machine()}; seed {SEED}; drafts {[draft.name for draft in drafts]}", soft_wrap=True)
    console.print("\n".join(table(done)), markup=False, highlight=False, soft_wrap=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(sample) for sample in done.samples], indent=1) + "\n")
    if done.disturbed:
        raise SystemExit(f"{len(done.disturbed)} requests failed, were aborted or retracted; {done.disturbed[0]}")


def run(options: argparse.Namespace, target: TargetModel, drafts: list[Path], console: Console) -> Soak:
    """Start the services, swap, and stop them."""
    plan = SoakPlan(swaps=options.swaps, gap_ms=options.gap_ms, concurrency=options.concurrency)
    prompts = held_out_prompts(target, plan.prompts, SEED)
    with tempfile.TemporaryDirectory() as scratch:
        local = LocalDeployment.on_free_ports(Path(scratch))
        sglang = cpu_server(local, target, drafts[0], env={"PACELINE_BUFFER_MAX_BYTES": str(STREAM_BYTES)})
        with running(local, sglang, drafts[:1]) as services, progress_bar("swapping", console) as report:
            return soak(
                services.server, server_pid=sglang.pid, drafts=drafts, prompts=prompts, plan=plan, report=report
            )


def random_drafts(target: TargetModel, data_dir: Path) -> list[Path]:
    """Two heads of random weights, cached."""
    folder = data_dir / "drafts"
    return [ensure_random_draft(target.folder, folder / f"{target.key}-{seed}", seed) for seed in range(2)]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("soak", __doc__)
    parser.add_argument("--swaps", type=int, default=2000, help="swaps to make, at least 20 (2000)")
    parser.add_argument("--gap-ms", type=int, default=100, help="least time between two versions going live (100)")
    parser.add_argument("--concurrency", type=int, default=4, help="requests that stream at a time (4)")
    parser.add_argument("--drafts", type=Path, nargs=2, help="folders of two drafts of this target (random ones)")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target and drafts")
    options = parser.parse_args()
    if options.swaps < 20:
        parser.error(
            f"--swaps: got {options.swaps}, expected at least 20, because its first and last tenth are compared"
        )
    return options


if __name__ == "__main__":
    with ending_signals():
        main()
