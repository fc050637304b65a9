"""What capture's hooks ask of a GPU and of SGLang's scheduler thread. Needs no GPU.

Operations: kernels, allocations and copies to the host that the hooks of one forward ask of a GPU, counted on pretended
tensors, so they are exact. Times: processor time of the thread, on the path that a machine without a GPU takes; there
the round's arithmetic is in it, which a GPU does in the one kernel. Lock: the share of time in which each thread of the
scheduler's process holds the interpreter lock while a CPU server with capture on answers; py-spy samples it.

    python -m paceline.benchmarks.hooks [--forwards 2000] [--serve 20] [--data-dir .paceline]
"""

import argparse
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from ..rig.models.target import ensure_random_draft, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.processes import ending_signals
from ..rig.progress import progress_bar
from ..rig.runs import machine
from .capture import ON, pair, rate
from .hook_cost.forwards import Shape
from .hook_cost.lock_share import lock_shares
from .hook_cost.operations import operations
from .hook_cost.times import hook_times
from .measure.command_line import benchmark_parser
from .measure.measured_server import held_out_prompts
from .measure.processes import child_named, resumed

BATCHES = (1, 8, 32, 64)
DRAFTS = (3, 7)
CONCURRENCY = 8


def main() -> None:
    """Count, time, sample and print."""
    options = parse()
    console = Console()
    console.print(f"machine: {machine()}; {options.forwards} forwards each")
    for row in rows(options.forwards):
        print(row, flush=True)
    if options.serve:
        for thread, share in served_shares(options.data_dir, options.serve, console).items():
            console.print(f"interpreter lock while serving at concurrency {CONCURRENCY}: {thread} {share:.1%}")


def shapes() -> Iterable[Shape]:
    """All that are counted and timed: rounds of chains, then prefills."""
    for drafts in (*DRAFTS, 0):
        for features in (True, False):
            yield from (Shape(batch, drafts, features) for batch in BATCHES)


def rows(forwards: int) -> Iterable[str]:
    """A table in Markdown, one row per kind of forward."""
    yield "| forward | features | batch | kernels | allocations | copies to the host | hook, us | consume, us |"
    yield "|---|---|---|---|---|---|---|---|"
    for shape in shapes():
        asked = operations(shape)
        took = hook_times(shape, forwards)
        kind = "prefill" if shape.is_prefill else f"round of {shape.drafts} drafts"
        counts = f"{asked.launches} | {asked.allocations} | {asked.copies}"
        features = "yes" if shape.features else "no"
        yield f"| {kind} | {features} | {shape.batch} | {counts} | {took.hook:.0f} | {took.consume:.0f} |"


def served_shares(data_dir: Path, seconds: int, console: Console) -> dict[str, float]:
    """Thread of the scheduler's process -> share of the time in which it holds the interpreter lock."""
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(data_dir, TrainPlan(), report=report)
    draft = ensure_random_draft(target.folder, data_dir / "drafts" / target.key, 0)
    prompts = held_out_prompts(target, CONCURRENCY, 0)
    over = threading.Event()
    with pair(target, draft, ON) as servers, tempfile.TemporaryDirectory() as folder:
        server = servers[ON]

        def load() -> None:
            while not over.is_set():
                rate(server, prompts, CONCURRENCY)

        rate(server, prompts, CONCURRENCY)
        with resumed(server.service.pid):
            client = threading.Thread(target=load, daemon=True)
            client.start()
            try:
                scheduler = child_named(server.service.pid, "sglang::scheduler")
                return lock_shares(scheduler.pid, Path(folder), seconds)
            finally:
                over.set()
                client.join()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("hooks", __doc__)
    parser.add_argument("--forwards", type=int, default=2000, help="forwards per row (2000)")
    parser.add_argument("--serve", type=int, default=20, help="seconds of sampling a server; 0: none (20)")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target and draft")
    return parser.parse_args()


if __name__ == "__main__":
    with ending_signals():
        main()
