"""Replays recorded traces as a stream, learns from them under one objective after another, and writes the tables.

    python -m paceline.benchmarks.learning.bench            # every stage, under an hour on two cores
    python -m paceline.benchmarks.learning.bench --quick    # the main rows on short streams, under five minutes
    python -m paceline.benchmarks.learning.bench --list     # the stages, and about how long each takes

A long bench can be run in parts, the later ones at the learning rates that the first one found:

    bench.py --stage main --stage labels --out first
    bench.py --stage off-path --rates first/results.json --out second
    bench.py --merge first/results.json second/results.json --out both

Writes results.md, results.json and PNGs to --out. What is missing is made first and kept in --data-dir: the target, the
warm head and the traces of the settings, about ten minutes in all. Then the time runs, and runs that have not begun
when it is over are dropped; the tables say how many seeds each row has.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from ...rig.machine import machine
from ...rig.progress import progress_bar
from ...rig.trace_file import read_traces
from ..gpu.models import SIZES
from ..measure.command_line import benchmark_parser
from .cost import seconds
from .lab import Lab, open_lab
from .plots import plot_all
from .programme import FULL, NAMED, QUICK, STARTS, Job, Programme, RateKey
from .record import ensure_recorded, settings
from .results import Part, Results, TunedRate, fingerprint, merged, read_results, write_results
from .runs import Run, run_job, use_one_thread
from .setting import Setting
from .tables import figures, groups, markdown, overall, wire_markdown
from .warm import ensure_warm_head
from .wire import WEIGHED, WireSize, wire_sizes


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes that run jobs until a moment of time.monotonic()."""

    pool: ProcessPoolExecutor
    lab: Lab
    ends_s: float

    def run(self, jobs: Iterable[Job], title: str, console: Console) -> list[Run]:
        """Run jobs in order, several at a time; those not begun when the time is over are dropped."""
        futures: list[Future[Run]] = [self.pool.submit(run_job, self.lab, job) for job in jobs]
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
    """List, merge, or run; and write."""
    options, console = parse(), Console()
    programme = chosen(options)
    if options.list:
        print_stages(programme, options.jobs, console)
    elif options.merge:
        write(options.out, merged([read_results(path) for path in options.merge]), console)
    else:
        write(options.out, run(options, programme, console), console)


def run(options: argparse.Namespace, programme: Programme, console: Console) -> Results:
    """Prepare what is missing, tune, and run every stage."""
    began_s, known = time.monotonic(), read_results(options.rates) if options.rates else None
    lab = prepare(options, programme, console)
    recorded, wire = weighed(lab, programme.settings)
    prepared_s = time.monotonic() - began_s
    rates = dict(known.tuned) if known else {}
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), use_one_thread) as pool:
        workers = Workers(pool, lab, began_s + prepared_s + 60.0 * programme.minutes)
        rates |= tuned(workers.run(programme.tuning_jobs(rates), "tuning", console))
        runs = workers.run(programme.jobs(rates), "runs", console)
    command = f'make bench-learning ARGS="{" ".join(sys.argv[1:])}"'
    names, whole_s = tuple(stage.name for stage in programme.stages), time.monotonic() - began_s
    return Results(
        lab.target.key,
        lab.domains,
        recorded,
        parts=(Part(command, machine(), names, round(prepared_s, 1), round(whole_s, 1)),),
        rates=tuple(TunedRate(*key, rate) for key, rate in rates.items()),
        runs=tuple(runs),
        wire=tuple(wire),
        plans={job.row.name: asdict(job.row.plan(1, 0)) for job in programme.jobs(rates)},
    )


def chosen(options: argparse.Namespace) -> Programme:
    """The programme that the command line asks for."""
    programme = QUICK if options.quick else FULL
    if options.stage:
        programme = (QUICK if options.quick else NAMED).of(options.stage)
    if options.row:
        programme = programme.with_rows(options.row)
    if options.start:
        programme = programme.begun(options.start)
    if options.settings:
        programme = programme.at(options.settings)
    return replace(programme, minutes=options.minutes or programme.minutes)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("learning.bench", __doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, short streams, six rows, greedy only")
    parser.add_argument("--stage", action="append", metavar="NAME", help="this stage alone; may be given again")
    parser.add_argument("--row", action="append", metavar="NAME", help="this row and the first one of its stages alone")
    parser.add_argument("--start", choices=STARTS, help="from this head alone")
    parser.add_argument("--list", action="store_true", help="print the stages and what they cost, and run nothing")
    parser.add_argument("--rates", type=Path, metavar="FILE", help="results.json whose learning rates are reused")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="results.json files to write as one")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny", help="of the target; all but tiny need a GPU")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="that serves and trains")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning"))
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each (2)")
    parser.add_argument(
        "--minutes", type=float, help=f"begin no run after this (quick {QUICK.minutes:g}, else {FULL.minutes:g})"
    )
    parser.add_argument("--settings", type=settings, help="by comma, as t0-k3,t0.7-k10; default: the stages' own")
    return parser.parse_args()


def print_stages(programme: Programme, jobs: int, console: Console) -> None:
    """Every stage with the runs it adds to those before it, and an estimate of its minutes."""
    rates = {job.rate_key: 1e-3 for job in programme.tuning_jobs({})}
    seen: set[object] = set()
    lines = [("tuning", list(programme.tuning_jobs({})), "learning rates; none of them with --rates")]
    for stage in programme.stages:
        own = [job for job in programme.of([stage.name]).jobs(rates) if job.key not in seen]
        seen.update(job.key for job in own)
        lines.append((stage.name, own, stage.question))
    for name, added, question in lines:
        minutes = seconds(added) / jobs / 60.0
        console.print(f"{name:13}{len(added):4} runs {minutes:5.1f} min  {question}", highlight=False, soft_wrap=True)
    total = sum(seconds(added) for _, added, _ in lines)
    console.print(f"about {total / jobs / 60.0:.0f} minutes with --jobs {jobs}; ends after {programme.minutes:g}")


def prepare(options: argparse.Namespace, programme: Programme, console: Console) -> Lab:
    """Target, warm head, cold heads and traces; minutes the first time, seconds from then on."""
    with progress_bar("training the target (once)", console) as report:
        lab = open_lab(options.data_dir, report, options.size, options.device)
    with progress_bar("training the warm head (once)", console) as report:
        ensure_warm_head(lab, report)
    for seed in range(max(stage.seeds for stage in programme.stages)):
        lab.random_head(seed)
    # What FULL needs, whatever is run: streams drawn from another number of traces would be other streams.
    for setting in programme.settings:
        ensure_recorded(lab, setting, FULL.per_domain(len(lab.domains)), console)
    return lab


def weighed(lab: Lab, settings: Iterable[Setting]) -> tuple[dict[str, str], list[WireSize]]:
    """Fingerprint of every setting's traces, and what they weigh on the wire."""
    fingerprints, sizes = dict[str, str](), list[WireSize]()
    for setting in settings:
        traces = read_traces(lab.trace_file(setting))
        fingerprints[setting.name] = fingerprint(traces)
        sizes += wire_sizes(setting.name, traces[:WEIGHED])
    return fingerprints, sizes


def tuned(runs: Sequence[Run]) -> dict[RateKey, float]:
    """For everything tuned, by traffic and start, the rate that got most accepted over the tuning stream."""
    best: dict[RateKey, Run] = {}
    for run in runs:
        key = run.job.rate_key
        if key not in best or overall(run) > overall(best[key]):
            best[key] = run
    return {key: run.job.rate for key, run in best.items() if run.job.rate is not None}


def write(out: Path, results: Results, console: Console) -> None:
    """Markdown, JSON and pictures into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    parts = [f"{caption(results)}\n", markdown(results.runs)]
    if results.wire:
        parts += ["### What a trace weighs\n", wire_markdown(results.wire, results.runs)]
    (out / "results.md").write_text("\n".join(parts), encoding="utf-8")
    rows = [figures(group, row) for group in groups(results.runs) for row in group.rows()]
    write_results(out / "results.json", results, rows)
    pictures = plot_all(results.runs, out)
    if not pictures:
        console.print("no plots: matplotlib is not installed")
    console.print(f"written: {out / 'results.md'}, results.json, {len(pictures)} plots", highlight=False)


def caption(results: Results) -> str:
    """Where the figures are from and what they mean."""
    parts = "".join(
        f"- `{part.command}`: {part.whole_s:.0f} s, of which preparing {part.preparing_s:.0f} s; {dict(part.machine)}\n"
        for part in results.parts
    )
    return (
        f"{parts}\nAccepted drafts per round, bonus token left out; mean over seeds ± half the 95 % t-interval; bold: "
        "the interval of the gain, paired by seed, excludes zero. Requests of "
        f"{', '.join(results.domains[:-1])}, then of {results.domains[-1]}; every chunk is measured before it is "
        "trained on, the first one included."
    )


if __name__ == "__main__":
    main()
