"""Benches that replay all streams of recorded traces in several orders, and keep each order when it is done."""

import argparse
import multiprocessing
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from ...buffer.stream.trace import DraftTrace
from ...learner.disk import write_text
from ...rig.progress import progress_bar
from ...rig.runs import machine
from ...rig.trace_file import read_traces
from ..measure.command_line import benchmark_parser
from .lab import Lab, open_lab
from .programme import PROGRAMMES, Setting
from .runs import use_one_thread


def parse(name: str, doc: str | None) -> argparse.Namespace:
    """The command line of `learning.NAME`."""
    parser = benchmark_parser(f"learning.{name}", doc)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument("--target", choices=sorted(PROGRAMMES), default="tiny", help="a small one, or a chat model")
    parser.add_argument("--settings", type=Setting.named, default=Setting(0.0, 3), help="of the traces; default: t0-k3")
    parser.add_argument("--seeds", type=int, default=3, help="orders of the requests (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning"))
    return parser.parse_args()


def report(
    name: str, doc: str | None, kept: Callable[[Lab, Setting, int], Any], markdown: Callable[[list[Any]], str]
) -> None:
    """Have `kept` find every order, a process each, and print and write the table that `markdown` makes of them."""
    options = parse(name, doc)
    console = Console()
    with progress_bar("the target (once)", console) as progress:
        lab = open_lab(options.data_dir, progress, is_chat=options.target != "tiny")
    pool = ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), use_one_thread)
    with pool, progress_bar("seeds", console) as progress:
        found = []
        for one in pool.map(partial(kept, lab, options.settings), range(options.seeds)):
            found.append(one)
            progress(len(found) / options.seeds, f"{len(found)} of {options.seeds}")
    text = f"{markdown(found)}\n{machine()}\n"
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / f"{name}.md", text)
    console.print(text, highlight=False, soft_wrap=True)


def kept_or_made(file: Path, kind: Any, make: Callable[[], Any]) -> Any:
    """What `file` holds, of the type `kind`; made and written where it is not there."""
    if not file.exists():
        write_text(file, msgspec.json.encode(make()).decode())
    return msgspec.json.decode(file.read_bytes(), type=kind)


def in_order(lab: Lab, setting: Setting, seed: int) -> list[DraftTrace]:
    """The traces of all streams, in the order of `seed`."""
    traces = [trace for domain in lab.domains for trace in read_traces(lab.trace_file(setting, domain))]
    random.Random(seed).shuffle(traces)
    return traces
