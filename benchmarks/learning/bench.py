"""Replays recorded traces as a stream, learns from them under one objective after another, and writes the table.

    python benchmarks/learning/bench.py            # everything, under an hour on two cores
    python benchmarks/learning/bench.py --quick    # two seeds and few requests, under five minutes

Writes results.md, results.json and PNGs to --out. What is missing is made first and kept in --data-dir: the target, the
warm head and the traces of the settings, about ten minutes in all. Once that is there the time runs, and runs that have
not begun when it is over are given up; the table says how many seeds each row has.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

# Started as a script, Python looks for modules beside this file alone; `measure` and `learning` lie one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paceline.demo.progress import progress_bar
from paceline.demo.report import machine
from rich.console import Console

from learning.lab import Lab, open_lab
from learning.plots import plot_all
from learning.record import ensure_recorded, settings
from learning.rows import FULL, QUICK, Job, Programme
from learning.runs import Run, run_job, use_one_thread
from learning.stream import Sizes, needed_per_domain
from learning.tables import figures, groups, markdown, overall
from learning.warm import ensure_warm_head

Rates = dict[tuple[str, str, str], float]


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes that run jobs until a moment of time.monotonic()."""

    pool: ProcessPoolExecutor
    lab: Lab
    ends_s: float

    def run(self, jobs: Iterable[Job], sizes: Sizes, title: str, console: Console) -> list[Run]:
        """Run jobs in their order, several at a time; those not begun when the time is over are given up."""
        futures: list[Future[Run]] = [self.pool.submit(run_job, self.lab, job, sizes) for job in jobs]
        left_s = max(self.ends_s - time.monotonic(), 0.0)
        with progress_bar(title, console) as report:
            try:
                for done, future in enumerate(as_completed(futures, left_s), start=1):
                    future.result()  # a run that failed ends the bench now, not when all others have ended
                    report(done / len(futures), f"{done} of {len(futures)} runs")
            except TimeoutError:
                console.print(
                    f"{title}: the time is over, given up: {sum(f.cancel() for f in futures)} of {len(futures)}"
                )
            finally:
                for future in futures:
                    future.cancel()
        return [future.result() for future in futures if not future.cancelled()]


def main() -> None:
    """Make what is missing, run, write."""
    options, console = parse(), Console()
    began_s, programme = time.monotonic(), chosen(options)
    lab = prepare(options.data_dir, programme, console)
    prepared_s = time.monotonic() - began_s
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, context, use_one_thread) as pool:
        workers = Workers(pool, lab, began_s + prepared_s + 60.0 * programme.minutes)
        rates = tuned(workers.run(programme.tuning_jobs(), programme.tuning_sizes, "tuning", console))
        runs = workers.run(programme.jobs(rates), programme.sizes, "runs", console)
    seconds = {"preparing": round(prepared_s), "whole": round(time.monotonic() - began_s)}
    write(options, lab, programme, runs, seconds, console)


def chosen(options: argparse.Namespace) -> Programme:
    """The programme that the command line asks for."""
    programme = QUICK if options.quick else FULL
    minutes, wanted = options.minutes or programme.minutes, options.settings or programme.settings
    return replace(programme, minutes=minutes, settings=wanted)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds, few requests, five rows, greedy only")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning"))
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each (2)")
    parser.add_argument("--minutes", type=float, help="begin no run behind this (quick 4, else 45)")
    parser.add_argument(
        "--settings", type=settings, help="by comma, as t0-k3,t0.7-k10; default t0-k5, else t0.7-k5 too"
    )
    return parser.parse_args()


def prepare(data_dir: Path, programme: Programme, console: Console) -> Lab:
    """Target, warm head, cold heads and traces; minutes the first time, seconds from then on."""
    with progress_bar("training the target (once)", console) as report:
        lab = open_lab(data_dir, report)
    with progress_bar("training the warm head (once)", console) as report:
        ensure_warm_head(lab, report)
    for seed in range(max(seeds for _, seeds in programme.stages)):
        lab.random_head(seed)
    needed = needed_per_domain(len(lab.domains), programme.sizes, programme.tuning_sizes)
    for setting in programme.settings:
        ensure_recorded(lab, setting, needed, console)
    return lab


def tuned(runs: Sequence[Run]) -> Rates:
    """For every objective, setting and start the rate with which most was accepted over the tuning stream."""
    best: dict[tuple[str, str, str], Run] = {}
    for run in runs:
        key = (run.job.row.objective, run.job.setting.name, run.job.start)
        if key not in best or overall(run) > overall(best[key]):
            best[key] = run
    return {key: run.job.rate for key, run in best.items() if run.job.rate is not None}


def write(
    options: argparse.Namespace,
    lab: Lab,
    programme: Programme,
    runs: Sequence[Run],
    seconds: dict[str, int],
    console: Console,
) -> None:
    """Markdown, JSON and pictures into --out."""
    options.out.mkdir(parents=True, exist_ok=True)
    command = f'make bench-learning ARGS="{" ".join(sys.argv[1:])}"'
    head = f"`{command}`\n\nmachine: {machine()}\n\n{caption(lab, programme, seconds)}\n\n"
    (options.out / "results.md").write_text(head + markdown(runs), encoding="utf-8")
    told = {
        "command": command, "machine": machine(), "seconds": seconds, "domains": lab.domains, "target": lab.target.key,
        "rows": [figures(group, row) for group in groups(runs) for row in group.rows()],
        "runs": [asdict(run) for run in runs],
    }  # fmt: skip
    (options.out / "results.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    pictures = plot_all(runs, options.out)
    if not pictures:
        console.print("no plots: matplotlib is not installed")
    console.print(f"written: {options.out / 'results.md'}, results.json, {len(pictures)} plots", highlight=False)


def caption(lab: Lab, programme: Programme, seconds: dict[str, int]) -> str:
    """What the figures mean."""
    sizes, usual = programme.sizes, ", ".join(lab.domains[:-1])
    return (
        "Accepted drafts per round, bonus token left out; mean over seeds ± half the 95 % t-interval; bold: the "
        f"interval of the gain, paired by seed, excludes zero. {sizes.before_shift} requests of {usual}, then "
        f"{sizes.after_shift} of {lab.shifted}, {sizes.cadence} requests per chunk, every chunk measured before it is "
        f"trained on, the first one included. {seconds['whole']} s, of which preparing {seconds['preparing']} s."
    )


if __name__ == "__main__":
    main()
