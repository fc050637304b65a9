"""What the step clock's hooks take of the steps of a real server: the SGLang of the demo, on this machine's cores.

`readings_cost` acts SGLang's classes and empties the caches before every hook; here SGLang itself has just touched what
the hooks read. A module on the server's path (measure/timed_clock.py) times every hook in the scheduler process, its
own two readings of the time included. The target is the demo's, of four million parameters, whose steps are about as
short as any: beside a larger one the share is smaller.

    python -m paceline.benchmarks.readings_served [--batches 1 8 32] [--seconds 20] [--data-dir .paceline]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rich.console import Console

from ..rig.deployment import LocalDeployment
from ..rig.machine import machine
from ..rig.models.target import ensure_random_draft, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.progress import progress_bar
from ..rig.prompts import Prompt
from ..rig.signals import ending_signals
from .measure.answers import answer_all, asks
from .measure.command_line import benchmark_parser
from .measure.measured_server import held_out_prompts
from .measure.services import cpu_server, running
from .measure.timed_clock import TimedStep, read_steps, timing_path

MAX_TOKENS = 128
SEED = 0


def main() -> None:
    """Measure and print."""
    options, console = parse(), Console()
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    draft = ensure_random_draft(target.folder, options.data_dir / "drafts" / target.key, SEED)
    prompts = held_out_prompts(target, max(options.batches), SEED)
    with tempfile.TemporaryDirectory() as scratch:
        local = LocalDeployment.on_free_ports(Path(scratch))
        times = local.folder / "steps.txt"
        env = {"PYTHONPATH": str(timing_path(local.folder / "path", times))}
        flags = ["--max-running-requests", str(max(options.batches))]
        with running(local, cpu_server(local, target, draft, flags, env), [draft]) as services:
            services.server.wait_for_capture()
            spans = [serve(services.server.url, prompts[:batch], options.seconds) for batch in options.batches]
        steps = read_steps(times)
    console.print(f"{machine()}; {options.seconds:.0f} s at each batch size", highlight=False)
    for row in table(options.batches, spans, steps):
        console.print(row, highlight=False, markup=False, soft_wrap=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("readings_served", __doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help="requests at a time (1 8 32)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each batch size (20)")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target and draft")
    return parser.parse_args()


def serve(url: str, prompts: Sequence[Prompt], seconds: float) -> tuple[float, float]:
    """Send all prompts at a time, again and again for so long; when that began and ended, by the monotonic clock."""
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        answer_all(url, asks(prompts, "timed", MAX_TOKENS), len(prompts))
    return began_s, time.perf_counter()


def table(batches: Sequence[int], spans: Sequence[tuple[float, float]], steps: Sequence[TimedStep]) -> list[str]:
    """A row per batch size; a step is from one result to the next while that many requests run."""
    rows = [
        "| batch | steps | step, ms, median | hooks, us, median | share of all steps' time |",
        "|---|---|---|---|---|",
    ]
    for batch, (began_s, ended_s) in zip(batches, spans, strict=True):
        within = [step for step in steps if began_s <= step.at_s <= ended_s]
        pairs = [
            (now.at_s - last.at_s, now.hooks_s) for last, now in pairwise(within) if last.batch == now.batch == batch
        ]
        took_s, hooks_s = zip(*pairs, strict=True)
        share = sum(hooks_s) / sum(took_s)
        medians = f"{1e3 * statistics.median(took_s):.1f} | {1e6 * statistics.median(hooks_s):.1f}"
        rows.append(f"| {batch} | {len(pairs)} | {medians} | {share:.2%} |")
    return rows


if __name__ == "__main__":
    with ending_signals():
        main()
