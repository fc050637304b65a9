"""What a draft that learns along gains over one that does not, while reinforcement learning moves the target.

    python -m paceline.benchmarks.rollouts            # three rates, five seeds, 24 steps
    python -m paceline.benchmarks.rollouts --quick    # one rate, one seed, 4 steps: a smoke test

One following run of the demo per rate and seed, with TRL, on a real server: `make rollouts` shows such a run. Its first
draft was taught on greedy answers, as everyday traffic teaches one; --taught-at 0.5 teaches it on answers like the
rollouts. The other arms are replayed on the run's rollouts: no speculation (0 accepted drafts per round by definition),
the first draft with zero updates, the draft adapted once, and the newest draft whether or not the gate let it serve.
With KL and entropy. On the first run of each rate, seconds of rollout and tail at three saved steps, the target
deepened to a real cost ratio.

Runs, replays and seconds are kept one by one in --out, so an interrupted bench goes on. Writes results.md there.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from ..rig.models.target import TargetModel, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.processes import ending_signals
from ..rig.progress import progress_bar
from ..rig.runs import machine
from .measure.command_line import benchmark_parser
from .rl.arms import StepArms, ensure_arms
from .rl.recorded import RecordedRun, RunPlan, ensure_run
from .rl.seconds import Seconds, ensure_seconds
from .rl.tables import parts_table, rate_table, seconds_table, steps_table

RATES = (1e-6, 1e-5, 1e-4)
QUICK_RATES = (1e-4,)
SEEDS = 5
QUICK_SEEDS = 1
STEPS = 24
QUICK_STEPS = 4
LAYERS = 40
QUICK_LAYERS = 8
_HEADING = """Accepted drafts per verify round, pooled over the last third of the steps, and geometric means of their \
ratio with 95 % intervals over seeds:"""


def main() -> None:
    """Run, replay, measure, and write the tables."""
    options = parse()
    console = Console()
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(options.data_dir, TrainPlan(), report=report)
    runs: dict[RunPlan, tuple[RecordedRun, list[StepArms]]] = {}
    for plan in plans(options):
        console.print(f"run {plan.name}")
        run = ensure_run(plan, (options.out / plan.name).absolute(), options.data_dir.absolute())
        runs[plan] = run, ensure_arms(run, target.folder)
    seconds = {} if options.without_seconds else measured(runs, target, options.layers, console)
    text = "\n\n".join(parts(options, runs, seconds)) + "\n"
    (options.out / "results.md").write_text(text, encoding="utf-8")
    console.print(text, soft_wrap=True, markup=False)


def measured(
    runs: dict[RunPlan, tuple[RecordedRun, list[StepArms]]], target: TargetModel, layers: int, console: Console
) -> dict[RunPlan, Seconds]:
    """Seconds of the first run of every rate."""
    found: dict[RunPlan, Seconds] = {}
    for plan, (run, _) in runs.items():
        if plan.seed == 0:
            console.print(f"seconds of {plan.name}")
            found[plan] = ensure_seconds(run, target.folder, layers)
    return found


def parts(
    options: argparse.Namespace,
    runs: dict[RunPlan, tuple[RecordedRun, list[StepArms]]],
    seconds: dict[RunPlan, Seconds],
) -> list[str]:
    """The document."""
    command = " ".join(["python -m paceline.benchmarks.rollouts", *sys.argv[1:]])
    said = [f"`{command}`, {machine()}.", _HEADING, rate_table(runs)]
    for plan, (_, steps) in runs.items():
        said += [f"## {plan.name}", steps_table(steps)]
        if plan in seconds:
            said += [f"Seconds, the target with {options.layers} layers:", seconds_table(seconds[plan])]
            said += ["Of all saved steps together:", parts_table(seconds[plan])]
    return said


def plans(options: argparse.Namespace) -> list[RunPlan]:
    """Seed by seed, so that an early end leaves all rates with the same seeds."""
    return [
        RunPlan(
            learning_rate=rate,
            seed=seed,
            steps=options.steps,
            temperature=options.temperature,
            taught_at=options.taught_at,
        )
        for seed in range(options.seeds)
        for rate in options.rates
    ]


def parse() -> argparse.Namespace:
    """The command line; --quick gives the other options smaller defaults."""
    parser = benchmark_parser("rollouts", __doc__)
    is_quick = "--quick" in sys.argv
    rates = QUICK_RATES if is_quick else RATES
    parser.add_argument("--quick", action="store_true", help="one rate, one seed, few steps: a smoke test")
    parser.add_argument("--rates", type=_rates, default=rates, help="of the target, comma-separated")
    parser.add_argument("--seeds", type=int, default=QUICK_SEEDS if is_quick else SEEDS, help="runs per rate")
    parser.add_argument("--steps", type=int, default=QUICK_STEPS if is_quick else STEPS, help="of each run")
    parser.add_argument("--temperature", type=float, default=0.5, help="of rollouts (0.5)")
    parser.add_argument("--taught-at", type=float, default=0.0, help="temperature of what taught the first draft (0)")
    parser.add_argument("--layers", type=int, default=QUICK_LAYERS if is_quick else LAYERS, help="of the slow target")
    parser.add_argument("--without-seconds", action="store_true", help="replay alone")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target and first draft")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/rollouts"), help="runs and tables")
    return parser.parse_args()


def _rates(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


if __name__ == "__main__":
    with ending_signals():
        main()
