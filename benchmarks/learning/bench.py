"""Replays recorded traces as a stream, learns from them in one way after another, and writes the tables.

    python -m paceline.benchmarks.learning.bench            # every stage, under an hour on two cores
    python -m paceline.benchmarks.learning.bench --quick    # the main rows on short streams, under five minutes
    python -m paceline.benchmarks.learning.bench --list     # the stages
    python -m paceline.benchmarks.learning.bench --target smollm2 --stage streams --shifted tools
                                                            # a chat model: hours on two cores, minutes on a GPU

Writes results.md, results.json and PNGs to --out. What is missing is made first and kept in --data-dir: the target, the
traces of the settings and the warm heads, about ten minutes in all, for a chat model hours. Then the time runs, and
runs that have not begun when it is over are dropped; the tables say how many seeds each row has. Runs are kept one by
one, so an interrupted bench goes on.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from rich.console import Console

from ...rig.progress import progress_bar
from ...rig.runs import machine
from ..measure.command_line import benchmark_parser
from .lab import Lab, open_lab
from .plots import plot_all
from .programme import FULL, PROGRAMMES, QUICK, Job, Programme, RateKey
from .record import ensure_recorded, settings
from .runs import Run, kept_run, use_one_thread
from .tables import figures, groups, markdown, overall
from .warm import CHAT_SETTING, ensure_warm_head


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes that run jobs until a moment of time.monotonic()."""

    pool: ProcessPoolExecutor
    lab: Lab
    ends_s: float

    def run(self, jobs: Iterable[Job], title: str, console: Console) -> list[Run]:
        """Run jobs in order, several at a time; those not begun when the time is over are dropped."""
        futures: list[Future[Run]] = [self.pool.submit(kept_run, self.lab, job) for job in jobs]
        left_s = max(self.ends_s - time.monotonic(), 0.0)
        with progress_bar(title, console) as report:
            try:
                for done, future in enumerate(as_completed(futures, left_s), start=1):
                    future.result()  # a run that failed ends the bench now, not when all others have ended
                    report(done / len(futures), f"{done} of {len(futures)} runs")
            except TimeoutError:
                console.print(
                    f"{title}: the time is over, dropped: {sum(f.cancel() for f in futures)} of {len(futures)}"
                )
            finally:
                for future in futures:
                    future.cancel()
        return [future.result() for future in futures if not future.cancelled()]


def main() -> None:
    """List, or run and write."""
    options = parse()
    console = Console()
    programme = chosen(options)
    if options.list:
        for stage in programme.stages:
            console.print(
                f"{stage.name:12}{len(list(stage.jobs())):4} runs  {stage.question}", highlight=False, soft_wrap=True
            )
    else:
        run(options, programme, console)


def run(options: argparse.Namespace, programme: Programme, console: Console) -> None:
    """Prepare what is missing, tune, run every stage, and write."""
    lab = prepare(options, programme, console)
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), use_one_thread) as pool:
        workers = Workers(pool, lab, time.monotonic() + 60.0 * programme.minutes)
        rates = tuned(workers.run(programme.tuning_jobs(), "tuning", console))
        runs = workers.run(programme.jobs(rates), "runs", console)
    write(options.out, lab, runs, console)


def chosen(options: argparse.Namespace) -> Programme:
    """Return the programme that the command line asks for."""
    programme = QUICK if options.quick else PROGRAMMES[options.target]
    if options.stage:
        programme = programme.of(options.stage)
    if options.settings:
        programme = programme.at(options.settings)
    if options.shifted:
        programme = programme.shifting_to(options.shifted)
    return replace(programme, minutes=options.minutes or programme.minutes)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = benchmark_parser("learning.bench", __doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, short streams, four rows")
    parser.add_argument("--stage", action="append", metavar="NAME", help="this stage alone; may be given again")
    parser.add_argument("--list", action="store_true", help="print the stages, and run nothing")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument("--target", choices=sorted(PROGRAMMES), default="tiny", help="a small one, or a chat model")
    parser.add_argument(
        "--shifted", action="append", metavar="STREAM", help="traffic shifts to it alone; again for more"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="that serves and trains")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning"))
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each (2)")
    parser.add_argument(
        "--minutes", type=float, help=f"begin no run after this (quick {QUICK.minutes:g}, else {FULL.minutes:g})"
    )
    parser.add_argument("--settings", type=settings, help="by comma, as t0-k3,t0.7-k10; default: the stages' own")
    return parser.parse_args()


def prepare(options: argparse.Namespace, programme: Programme, console: Console) -> Lab:
    """Make target, traces, warm heads and cold heads; minutes the first time, seconds from then on."""
    with progress_bar("the target (once)", console) as report:
        lab = open_lab(options.data_dir, report, is_chat=options.target != "tiny", device=options.device)
    per_domain = PROGRAMMES[options.target].per_domain(len(lab.domains))
    # Always as many: streams drawn from another number of traces would be other streams.
    for setting in dict.fromkeys([*programme.settings, *([CHAT_SETTING] if lab.is_chat else [])]):
        ensure_recorded(lab, setting, per_domain, console)
    for shifted in programme.warm_shifts:
        unknown = ", ".join(lab.unknown(lab.shifted(shifted)))
        with progress_bar(f"training the warm head without {unknown} (once)", console) as report:
            ensure_warm_head(lab, lab.shifted(shifted), report)
    for seed in range(max(stage.seeds for stage in programme.stages)):
        lab.random_head(seed)
    return lab


def tuned(runs: Sequence[Run]) -> dict[RateKey, float]:
    """For everything tuned, by traffic and start, the rate that got most accepted over the tuning stream."""
    best: dict[RateKey, Run] = {}
    for run in runs:
        key = run.job.rate_key
        if key not in best or overall(run) > overall(best[key]):
            best[key] = run
    return {key: run.job.rate for key, run in best.items() if run.job.rate is not None}


def write(out: Path, lab: Lab, runs: Sequence[Run], console: Console) -> None:
    """Write Markdown, JSON and pictures into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    command = f'make bench-learning ARGS="{" ".join(sys.argv[1:])}"'
    caption = (
        f"- `{command}`: {dict(machine())}\n\nAccepted drafts per round, bonus token left out; mean over seeds ± half "
        "the 95 % t-interval; bold: the interval of the gain, paired by seed, excludes zero. Domains: "
        f"{', '.join(lab.domains)}; every chunk is measured before it is trained on."
    )
    (out / "results.md").write_text(f"{caption}\n\n{markdown(runs)}", encoding="utf-8")
    rows = [figures(group, row) for group in groups(runs) for row in group.rows()]
    found = {"command": command, "machine": machine(), "rows": rows, "runs": msgspec.to_builtins(runs)}
    (out / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    pictures = plot_all(runs, out)
    console.print(f"written: {out / 'results.md'}, results.json, {len(pictures)} plots", highlight=False)


if __name__ == "__main__":
    main()
