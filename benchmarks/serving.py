"""Tokens per second on live servers while traffic shifts: paceline's whole loop against what one could serve instead.

    python -m paceline.benchmarks.serving                       # learner elsewhere: 3 chunks of code, then prose
    python -m paceline.benchmarks.serving --mode same-cores     # the learner on the cores of the server
    python -m paceline.benchmarks.serving --quick               # proof of life: its figures mean nothing
    python -m paceline.benchmarks.serving --prompts mine.txt    # your own traffic, a prompt or a JSON object per line

Six servers of one target are up at the same time: plain (never loaded a draft), static (a draft trained well on the
first domain, three steps), static-paced (the same, paced), paceline (the same draft with the whole loop: captured,
learning, swapped, paced), random (a random draft, paced) and oracle (a draft trained offline on the later domains,
paced). A chunk of the stream holds a block of prompts for every concurrency. Each block is asked of every server, one
server at a time in an order drawn for the block, and the others sleep meanwhile. Every answer must have the tokens of
the server without a draft. All that the arm paceline answers, at any concurrency, is what its learner learns from.

Where the learner is elsewhere, traffic is held after a chunk while it learns, and its seconds are counted apart. On
the same cores it runs whenever its own server is asked, and stands still while another one is. The target is the
demo's, deepened with layers that change no output until a draft step costs about a tenth of a target step.

Every block is kept in --out as soon as it is answered, so an interrupted run goes on. Writes a table
and a plot there, named after the mode. The first time, the target and the drafts are trained: a quarter of an hour.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from ..rig.models.deepened import slower
from ..rig.models.target import TargetModel, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.processes import ending_signals
from ..rig.progress import progress_bar
from ..rig.runs import machine
from ..rig.speed.arm import PACED_STEPS
from .learning.lab import DOMAINS
from .measure.command_line import benchmark_parser
from .serving_speed.arms import Drafts, arms, digests
from .serving_speed.figures import differing
from .serving_speed.offline_draft import OfflinePlan, ensure_offline_draft, ensure_untrained_draft
from .serving_speed.plot import plot
from .serving_speed.recorded import Conditions, Run
from .serving_speed.serve import ELSEWHERE, SAME_CORES, Job, ensure_run
from .serving_speed.stream import Chunk, drawn, fingerprint, from_file
from .serving_speed.table import markdown

_HOUSE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is asked; `blocks` is concurrency -> prompts of a chunk."""

    chunks: tuple[int, int]  # of the first domain, of each later one
    blocks: Mapping[int, int]
    max_tokens: int
    layers: int
    offline: OfflinePlan


STEPS = PACED_STEPS[-1]
FULL = Size(chunks=(3, 9), blocks={1: 2, 4: 8, 8: 16}, max_tokens=96, layers=40, offline=OfflinePlan(STEPS))
QUICK = Size(
    chunks=(1, 2),
    blocks={1: 1, 4: 4, 8: 8},
    max_tokens=32,
    layers=8,
    offline=OfflinePlan(STEPS, prompts=64, answer_tokens=32, passes=1),
)


def main() -> None:
    """Make the runs that are missing, and write what all of them say; exit code 1 when an answer was changed."""
    options = parse()
    console = Console()
    torch.set_num_threads(1)
    with ending_signals():
        runs = made(options, console)
    text = markdown(f"python -m paceline.benchmarks.serving {' '.join(sys.argv[1:])}".strip(), runs)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    (options.out / f"{options.mode}.md").write_text(text, encoding="utf-8")
    plot(runs, options.out / f"{options.mode}.png")
    sys.exit(1 if differing(runs)[0] else 0)


def made(options: argparse.Namespace, console: Console) -> list[Run]:
    """All runs that were asked for."""
    target = prepared(options, console)
    drafts = trained(target, options, console)
    return [run(target, drafts, options, seed=seed, console=console) for seed in range(options.runs)]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("serving", __doc__)
    parser.add_argument("--mode", choices=(ELSEWHERE, SAME_CORES), default=ELSEWHERE, help="where the learner runs")
    parser.add_argument("--runs", type=int, default=1, help="streams, seeds 0, 1 and so on (1)")
    parser.add_argument("--domains", type=domains, default=DOMAINS[:2], help="first and later ones (py,prose)")
    parser.add_argument("--chunks", type=chunk_counts, help="of the first domain and of each later one (3,9)")
    parser.add_argument("--arms", type=names, default=(), help="leave out all others but the three that figures need")
    parser.add_argument(
        "--prompts", type=Path, help="a file of prompts instead; the first domain is then nowhere in it"
    )
    parser.add_argument("--static", type=Path, metavar="FOLDER", help="another first draft")
    parser.add_argument("--oracle", type=Path, metavar="FOLDER", help="another draft of the later domains")
    parser.add_argument("--quick", action="store_true", help="proof of life: small chunks, short answers, few layers")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target and drafts")
    parser.add_argument("--target", type=Path, metavar="FOLDER", help="one that was trained before, of any domains")
    seconds = TrainPlan().seconds
    parser.add_argument("--target-seconds", type=float, default=seconds, help="for training the target (150)")
    parser.add_argument("--out", type=Path, help="runs and tables (benchmarks/results/serving or serving-quick)")
    options = parser.parse_args()
    options.size = QUICK if options.quick else FULL
    if options.chunks:
        options.size = replace(options.size, chunks=options.chunks)
    options.out = options.out or Path("benchmarks/results") / ("serving-quick" if options.quick else "serving")
    return options


def names(text: str) -> tuple[str, ...]:
    """Names divided by commas."""
    return tuple(text.split(","))


def domains(text: str) -> tuple[str, ...]:
    """At least two domains of text."""
    found = names(text)
    if len(found) < 2 or not {*found} <= {*DOMAINS}:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected two or more of {','.join(DOMAINS)}")
    return found


def chunk_counts(text: str) -> tuple[int, int]:
    """Two whole numbers of at least one."""
    first, _, later = text.partition(",")
    if not (first.isdigit() and later.isdigit() and int(first) and int(later)):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected two numbers of at least 1, as 3,9")
    return int(first), int(later)


def prepared(options: argparse.Namespace, console: Console) -> TargetModel:
    """The target of --target, else one trained on the domains, which for the default ones is the demo's."""
    if options.target:
        folder = options.target.absolute()
        return TargetModel(folder, folder.name, {}, 0)
    with progress_bar("training the target (once)", console) as report:
        plan = TrainPlan(seconds=options.target_seconds)
        target = ensure_target(options.data_dir, plan, options.domains, report)
    return replace(target, folder=target.folder.absolute())


def trained(target: TargetModel, options: argparse.Namespace, console: Console) -> Drafts:
    """The drafts that arms start with; trained when they are not there. An oracle of own prompts must be given."""
    oracle = options.oracle
    with progress_bar("training the first draft (once)", console) as report:
        static = options.static or ensure_offline_draft(target, options.domains[:1], options.size.offline, report)
    if oracle is None and options.prompts is None:
        with progress_bar("training the oracle's draft (once)", console) as report:
            oracle = ensure_offline_draft(target, options.domains[1:], options.size.offline, report)
    return Drafts(static, ensure_untrained_draft(target), oracle)


def run(target: TargetModel, drafts: Drafts, options: argparse.Namespace, *, seed: int, console: Console) -> Run:
    """One run of one seed, served as far as it was not."""
    size = options.size
    chosen = arms(drafts, options.arms)
    chunks = stream(target, options, seed, console)
    slow = slower(target, size.layers)
    first = "" if options.prompts else options.domains[0]
    conditions = Conditions(
        mode=options.mode,
        seed=seed,
        stream=fingerprint(chunks),
        first_domain=first,
        arms=tuple(arm.name for arm in chosen),
        drafts=digests(chosen),
        layers=size.layers,
        max_tokens=size.max_tokens,
        target=target.key,
        commit=commit(),
        machine=machine(),
    )
    with progress_bar(f"{options.mode}, seed {seed}", console) as report:
        return ensure_run(
            Job(
                target=slow,
                arms=chosen,
                chunks=chunks,
                conditions=conditions,
                folder=options.out / f"{options.mode}-{seed}",
            ),
            report,
        )


def stream(target: TargetModel, options: argparse.Namespace, seed: int, console: Console) -> list[Chunk]:
    """The chunks of one seed, or of the user's file, which every seed gets alike."""
    size = options.size
    if options.prompts is None:
        wanted = {name: size.chunks[bool(at)] for at, name in enumerate(options.domains)}
        return drawn(target, wanted, size.blocks, seed)
    chunks, left = from_file(options.prompts, target, size.blocks, size.max_tokens)
    console.print(
        f"{options.prompts}: {len(chunks)} chunks; {left} prompts fill none and are not asked", highlight=False
    )
    return chunks


def commit() -> str:
    """The revision of this checkout; "unknown" outside one."""
    done = subprocess.run(["git", "-C", _HOUSE, "rev-parse", "--short=12", "HEAD"], capture_output=True, check=False)
    return done.stdout.decode().strip() or "unknown"


if __name__ == "__main__":
    main()
