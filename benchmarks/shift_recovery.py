"""How soon the closed loop serves well again after traffic shifted: the demo before a change and after it, in pairs.

    python -m paceline.benchmarks.shift_recovery --before e2d621e              # against HEAD, ten pairs
    python -m paceline.benchmarks.shift_recovery --before HEAD --after-setting PACELINE_GATE_CONFIDENCE=0.95 --runs 3

Every run is the demo's main job on the real server with a real learner: code, then prose. Both runs of a pair have the
target, the prompts in their order and the initial draft in common; another seed has others. What the runs do not have
in common is when the learner finds time, so pairs differ, and the seeds together show by how much.

A run takes 7 to 8 minutes of two cores. It is kept in --out as soon as it has ended, so an interrupted bench is taken
up where it was. What is kept are figures of its requests and versions, nothing large. Writes the table to --table.
"""

import argparse
import random
import sys
from pathlib import Path

from rich.console import Console

from ..rig.models.target import TargetModel, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.progress import progress_bar
from ..rig.signals import ending_signals
from .measure.command_line import benchmark_parser
from .recovery.demo_run import Job, ensure_run
from .recovery.recorded_run import RecordedRun
from .recovery.side import Side, checked_out
from .recovery.table import markdown


def main() -> None:
    """Make the runs that are missing, and write what all of them say."""
    options, console = parse(), Console()
    given = ((options.before, options.before_setting), (options.after, options.after_setting))
    before, after = (
        checked_out(name, revision, dict(settings), options.out / "checkouts")
        for name, (revision, settings) in zip(("before", "after"), given, strict=True)
    )
    job = Job(prepared(options.data_dir, console), options.requests, options.max_tokens)
    runs = [pair(before, after, seed, job, options.out, console) for seed in range(options.runs)]
    text = markdown(f'make bench-shift ARGS="{" ".join(sys.argv[1:])}"', runs)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    options.table.parent.mkdir(parents=True, exist_ok=True)
    options.table.write_text(text, encoding="utf-8")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("shift_recovery", __doc__)
    parser.add_argument("--before", required=True, metavar="REVISION", help="git revision of one side")
    parser.add_argument("--after", default="HEAD", metavar="REVISION", help="git revision of the other (HEAD)")
    for name in ("--before-setting", "--after-setting"):
        what = "an environment variable of that side alone; may be given again"
        parser.add_argument(name, action="append", default=[], type=setting, metavar="NAME=VALUE", help=what)
    parser.add_argument("--runs", type=int, default=10, help="pairs, seeds 0, 1 and so on (10)")
    parser.add_argument("--requests", type=int, default=480, help="of a run, both domains together (480)")
    parser.add_argument("--max-tokens", type=int, default=96, help="new tokens per request (96)")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="where the demo's target is cached")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/shift-recovery"), help="folder of the runs"
    )
    table = Path("benchmarks/tables/shift-recovery.md")
    parser.add_argument("--table", type=Path, default=table, help="a Markdown file, replaced")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs: got {options.runs}, expected at least 1")
    return options


def setting(text: str) -> tuple[str, str]:
    """A name and a value."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=VALUE")
    return name, value


def prepared(data_dir: Path, console: Console) -> TargetModel:
    """The demo's own target; trained the first time."""
    with progress_bar("training the target (once)", console) as report:
        return ensure_target(data_dir, TrainPlan(), report=report)


def pair(
    before: Side, after: Side, seed: int, job: Job, out: Path, console: Console
) -> tuple[RecordedRun, RecordedRun]:
    """Both runs of a seed, the one that goes first drawn from it: whatever drifts meanwhile favours neither."""
    found = {}
    for side in random.Random(f"shift {seed}").sample((before, after), 2):
        console.print(f"seed {seed}, {side.name} ({side.commit[:12]})", highlight=False)
        found[side.name] = ensure_run(side, seed, job, out / f"seed-{seed}" / side.name)
    return found[before.name], found[after.name]


if __name__ == "__main__":
    with ending_signals():
        main()
