"""Which rule should decide when a newly trained draft goes live? Rules side by side on streams of recorded requests.

    python -m paceline.benchmarks.gate            # ten streams, five seeds
    python -m paceline.benchmarks.gate --quick    # two streams, two seeds, small

Greedy text does not depend on the draft, so requests are recorded once, streams are composed of them, and one line of
drafts is trained per stream and seed in the product's way. Every draft is scored by replay on all that it never learnt
from. These matrices are kept in --out and used again; on one of them a rule is judged in milliseconds.

What is missing is made first and kept in --data-dir: the target, the warm head and the traces. Writes results.md,
results.json and gate.png to --out.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..rig.machine import machine
from ..rig.progress import progress_bar
from .gating.equal import gain_of_copies
from .gating.kept import kept_line
from .gating.line import Job
from .gating.plots import plot
from .gating.pool import load_pool
from .gating.report import heading, markdown
from .gating.results import among_equals, compared, write_results
from .gating.streams import CHUNK_REQUESTS, CHUNKS, StreamPlan, plans
from .gating.table import PLOTTED, RULES
from .learning.lab import TARGET_TRAIN_S, open_lab
from .learning.warm import ensure_warm_head
from .measure.command_line import benchmark_parser

SEEDS, QUICK_SEEDS = 5, 2
QUICK_STREAMS = ("shift", "equal")
QUICK_CHUNKS, QUICK_CHUNK_REQUESTS = 5, 20
PER_DOMAIN, QUICK_PER_DOMAIN = 372, 72
#: Matrices of equal drafts: more runs come from dealing out their tallies again, not from more matrices.
EQUAL_SEEDS = 2


def main() -> None:
    """Make what is missing, judge, and write the tables."""
    options, console = parse(), Console()
    torch.set_num_threads(1)
    began_s = time.monotonic()
    with progress_bar("training target and warm head (once)", console) as report:
        lab = open_lab(options.data_dir, report, train_s=options.target_seconds)
        ensure_warm_head(lab, report)
    pool = load_pool(lab, QUICK_PER_DOMAIN if options.quick else PER_DOMAIN, console)
    size = QUICK_CHUNK_REQUESTS if options.quick else CHUNK_REQUESTS
    matrices = [kept_line(lab, pool, job, options.out / "lines", size, console) for job in jobs(options)]
    made_s = time.monotonic() - began_s
    shifts = {plan.name: plan.shift_at for plan in stream_plans(options)}
    trained = [matrix for matrix in matrices if matrix.card["stream"] != "equal"]
    equal = [matrix for matrix in matrices if matrix.card["stream"] == "equal"]
    lines = [figures for m in trained for figures in compared(m, RULES, shifts[m.card["stream"]])]
    among = among_equals(equal, RULES, options.deals)
    card: dict[str, Any] = {
        "command": " ".join(sys.argv[1:]),
        "machine": machine(),
        "target": lab.target.key,
        "pool": pool.fingerprint,
        "making_s": made_s,
        "whole_s": time.monotonic() - began_s,
        "equal_copies": [gain_of_copies(matrix) for matrix in equal],
    }
    write_results(options.out / "results.json", card, lines, among)
    text = f"{heading(card, stream_plans(options), trained)}\n{markdown(lines, among)}"
    (options.out / "results.md").write_text(text, encoding="utf-8")
    plot(lines, PLOTTED, options.out / "gate.png")
    console.print(text, markup=False, highlight=False)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("gate", __doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gate"), help="matrices and tables")
    parser.add_argument("--target-seconds", type=float, default=TARGET_TRAIN_S, help="for training the target (150)")
    parser.add_argument("--quick", action="store_true", help="two streams, two seeds, small")
    parser.add_argument("--streams", type=lambda text: text.split(","), help="by comma; default: all of them")
    parser.add_argument("--seeds", type=int, help=f"of every stream ({SEEDS})")
    parser.add_argument(
        "--blocks", type=int, default=2, help="parts a round is trained in, each judged on before it is learnt (2)"
    )
    parser.add_argument("--deals", type=int, default=200, help="runs between equal drafts, per seed (200)")
    return parser.parse_args()


def stream_plans(options: argparse.Namespace) -> Sequence[StreamPlan]:
    """What is asked for."""
    names = options.streams or (QUICK_STREAMS if options.quick else None)
    found = {plan.name: plan for plan in plans(QUICK_CHUNKS if options.quick else CHUNKS)}
    unknown = set(names or ()) - set(found)
    if unknown:
        raise SystemExit(f"--streams: got {', '.join(sorted(unknown))}, expected some of {', '.join(found)}")
    return [found[name] for name in names or found]


def jobs(options: argparse.Namespace) -> list[Job]:
    """Every line, all streams of a seed before the next seed."""
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    pairs = [(plan, seed) for seed in range(seeds) for plan in stream_plans(options)]
    return [Job(plan, seed, options.blocks) for plan, seed in pairs if not plan.is_equal or seed < EQUAL_SEEDS]


if __name__ == "__main__":
    main()
