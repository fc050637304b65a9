"""When traffic shifts: how a line should train, what resting forgoes, the smallest gain that pays, alarms, canaries.

    python -m paceline.benchmarks.shift --seeds 3                           # all of it
    python -m paceline.benchmarks.shift --seeds 3 --ways "8 passes,replay balanced"    # these ways of training
    python -m paceline.benchmarks.shift --ways ""                           # none: what the lines alone show
    python -m paceline.benchmarks.shift --parts canaries                    # one of its tables, in minutes

On the streams and lines of the gate bench, which are used again from --lines, or trained and kept there. What is
missing is made first and kept in --data-dir: the target, the warm head and the traces. Ways of training are compared
with today's on `shift`; another stream is named with --harm. Every run is kept in --lines, so a part that was
interrupted is taken up where it was. Writes shift.md to --out.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from rich.console import Console

from ..rig.machine import machine
from ..rig.progress import progress_bar
from .gating.kept import kept_line
from .gating.line import Job
from .gating.matrix import Matrix
from .gating.pool import Pool, load_pool
from .gating.recovery import Recovery, first_moved, of_small_rounds, todays, trained
from .gating.shift_report import PARTS, markdown
from .gating.streams import CHUNK_REQUESTS, CHUNKS, drawn, plans
from .gating.ways import WAYS, Way
from .learning.lab import TARGET_TRAIN_S, Lab, open_lab
from .learning.warm import ensure_warm_head
from .measure.command_line import benchmark_parser

PER_DOMAIN = 372
STREAMS = ("shift", "recurring", "stationary", "drift", "mixture")
SEEDS = 3


def main() -> None:
    """Make what is missing, and write the tables."""
    options, console = parse(), Console()
    torch.set_num_threads(1)
    with progress_bar("training target and warm head (once)", console) as report:
        lab = open_lab(options.data_dir, report, train_s=options.target_seconds)
        ensure_warm_head(lab, report)
    pool = load_pool(lab, PER_DOMAIN, console)
    lines = [
        (job, kept_line(lab, pool, job, options.lines / "lines", CHUNK_REQUESTS, console)) for job in jobs(options)
    ]
    asked = lines if "ways" in options.parts else []
    found = [recovery for job, matrix in asked for recovery in recoveries(lab, pool, job, matrix, options, console)]
    card = {"command": " ".join(sys.argv[1:]), "machine": machine(), "target": lab.target.key, "pool": pool.fingerprint}
    text = markdown(card, [matrix for _, matrix in lines], found, options.canaries, options.parts)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "shift.md").write_text(text, encoding="utf-8")
    console.print(text, markup=False, highlight=False)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("shift", __doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument("--lines", type=Path, default=Path("benchmarks/results/gate"), help="where lines are kept")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/shift"), help="where the tables go")
    parser.add_argument("--target-seconds", type=float, default=TARGET_TRAIN_S, help="for training the target (150)")
    parser.add_argument("--streams", type=names, default=STREAMS, help=f"by comma ({','.join(STREAMS)})")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of every stream ({SEEDS})")
    parser.add_argument("--ways", type=names, help="ways of training, by comma; default: all of them")
    parser.add_argument("--harm", type=names, default=(), help="streams beside `shift` that ways are trained on")
    parser.add_argument("--parts", type=parts, default=tuple(PARTS), help=f"tables, by comma ({','.join(PARTS)})")
    parser.add_argument("--canaries", type=int, default=20, help="equal canaries tried at every shift (20)")
    return parser.parse_args()


def names(text: str) -> tuple[str, ...]:
    """Names divided by commas; none in an empty text."""
    return tuple(text.split(",")) if text else ()


def parts(text: str) -> tuple[str, ...]:
    """Tables, in the order of the report."""
    if unknown := set(names(text)) - set(PARTS):
        raise argparse.ArgumentTypeError(f"got {', '.join(sorted(unknown))}, expected some of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in names(text))


def jobs(options: argparse.Namespace) -> list[Job]:
    """Every line, all streams of a seed before the next seed. SystemExit when a stream is unknown."""
    known = {plan.name: plan for plan in plans(CHUNKS)}
    unknown = {*options.streams, *options.harm} - set(known)
    if unknown:
        raise SystemExit(f"--streams, --harm: got {', '.join(sorted(unknown))}, expected some of {', '.join(known)}")
    return [Job(known[name], seed, 2) for seed in range(options.seeds) for name in options.streams]


def recoveries(
    lab: Lab, pool: Pool, job: Job, matrix: Matrix, options: argparse.Namespace, console: Console
) -> Iterator[Recovery]:
    """Today's way, rounds of half the size, and the ways that are asked for where the stream has a shift to be seen."""
    yield todays(matrix)
    yield of_small_rounds(matrix)
    is_asked = job.plan.name == "shift" or job.plan.name in options.harm
    if is_asked and first_moved(matrix) is not None:
        for way in ways(options):
            yield kept_recovery(lab, pool, job, matrix, way, options.lines / "recovery", console)


def ways(options: argparse.Namespace) -> list[Way]:
    """What is asked for. SystemExit when one is unknown."""
    known = {way.name: way for way in WAYS}
    asked = known if options.ways is None else options.ways
    unknown = set(asked) - set(known)
    if unknown:
        raise SystemExit(f"--ways: got {', '.join(sorted(unknown))}, expected some of {'; '.join(known)}")
    return [known[name] for name in asked]


def kept_recovery(lab: Lab, pool: Pool, job: Job, matrix: Matrix, way: Way, folder: Path, console: Console) -> Recovery:
    """One way on one stream: read where it is kept, else trained and kept."""
    path = folder / f"{job.name}-{way.name.replace(' ', '-')}-{pool.fingerprint}.json"
    if not path.exists():
        requests = drawn(job.plan, pool, job.seed)
        with progress_bar(f"{job.name}, {way.name}", console) as report:
            found = trained(lab, job, requests, matrix, way, folder, report)
        path.write_bytes(msgspec.json.encode(found))
    return msgspec.json.decode(path.read_bytes(), type=Recovery)


if __name__ == "__main__":
    main()
