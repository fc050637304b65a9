"""What does paceline do on this SGLang release, with which flags, draft forms and target families?

Every row starts the real server on the CPU host, serves a few requests and compares each trace with its answer, replays
the draft over the traces, trains it on them, swaps the result in, and serves and replays again. Greedy, except where a
row says otherwise; targets other than the first one are random. One release at a time: that of this environment.
Rows that FILE has from the same code on the same machine are not run again: an interrupted run is taken up by the next.

    python -m paceline.benchmarks.compatibility [--only SUBSTRING] [--json FILE] [--again]
    python -m paceline.benchmarks.compatibility --merge FILE FILE --out docs/compatibility.md
"""

import argparse
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic as now_s

from rich.console import Console

from ..buffer.errors import PacelineError
from ..rig.models.target import TargetModel, ensure_target
from ..rig.models.training import TrainPlan
from ..rig.processes import ending_signals
from ..rig.progress import progress_bar
from ..rig.prompts import Prompt
from ..rig.readiness import free_port
from ..rig.services import redis_service
from .matrix.cell import Case, measure
from .matrix.models import published, random_target, untrained_draft
from .matrix.quantised import quantised_target
from .matrix.results import Cells, Measured, still_holding
from .matrix.rows import FOLDER, LLAMA, MTP, ROWS, Row, chosen
from .matrix.server import running, start_of, why_no_replay
from .matrix.table import COLUMNS, page, shortened
from .measure.command_line import benchmark_parser
from .measure.measured_server import held_out_prompts

REQUESTS = 8
SEED = 0
#: So many prompts, one after the other, are the system prompt of rows that have one.
SYSTEM_PROMPTS = 2
#: Of the first target, which only has to be better than a random one.
PLAN = TrainPlan(steps=200, seconds=300.0)
#: A line of a log that names an exception and says what it says.
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Unavailable): ")


@dataclass(frozen=True, slots=True)
class Lab:
    """What all rows share."""

    target: TargetModel
    prompts: Sequence[Prompt]
    folder: Path
    redis_url: str

    def prompts_of(self, row: Row) -> Sequence[Prompt]:
        """What the row's server is asked."""
        if not row.has_system_prompt:
            return self.prompts
        system = tuple(token for prompt in self.prompts[:SYSTEM_PROMPTS] for token in prompt.input_ids)
        return [replace(prompt, input_ids=system + prompt.input_ids) for prompt in self.prompts]


def main() -> None:
    """Measure and print, or merge what was measured."""
    options = parse()
    text = page([Measured.read(file) for file in options.merge] if options.merge else [measured(options)])
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    elif not options.json:
        print(text)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("compatibility", __doc__)
    parser.add_argument("--only", action="append", default=[], help="rows whose name contains this; may be repeated")
    parser.add_argument("--json", type=Path, help="keep what was measured in this file, row by row")
    parser.add_argument("--again", action="store_true", help="run the chosen rows even if the file has them")
    parser.add_argument(
        "--merge", type=Path, nargs="+", help="run nothing: make one document of these files; the last one counts"
    )
    parser.add_argument("--out", type=Path, help="write the document to this file")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of the target")
    return parser.parse_args()


def measured(options: argparse.Namespace) -> Measured:
    """All chosen rows, one server after another, less those that are kept. Rows that fail say so in their cells."""
    console = Console()
    rows = chosen(ROWS, options.only)
    done = kept(options.json, console) if options.json else Measured.nothing_yet()
    held = () if options.again else {each.row for each in done.cells}
    left = [row for row in rows if row.key not in held]
    if len(left) < len(rows):
        console.print(f"{len(rows) - len(left)} of {len(rows)} rows are in {options.json}", highlight=False)
    if not left:
        return done
    with laboratory(options.data_dir, console) as lab:
        for number, row in enumerate(left):
            with progress_bar(f"row {number + 1} of {len(left)}, {row.key}", console) as report:
                cells = timed(lab, row, number, str(done.machine["sglang"]))
                report(1.0, "; ".join(f"{name} {shortened(text)}" for name, text in cells.found.items()))
            done = done.with_row(cells)
            if options.json:
                done.save(options.json)
    return done


def kept(file: Path, console: Console) -> Measured:
    """What `file` has that still holds; says why where that is nothing."""
    done, why_none = still_holding(file, Measured.nothing_yet())
    if why_none:
        console.print(why_none, highlight=False)
    return done


@contextmanager
def laboratory(data_dir: Path, console: Console) -> Iterator[Lab]:
    """Everything but a server; the target is trained if `data_dir` has none."""
    with progress_bar("training the target (once)", console) as report:
        target = ensure_target(data_dir, PLAN, report=report)
    prompts = held_out_prompts(target, REQUESTS, SEED)[:REQUESTS]
    with tempfile.TemporaryDirectory() as scratch, redis_service(Path(scratch, "redis"), port := free_port()):
        yield Lab(target, prompts, Path(scratch), f"redis://127.0.0.1:{port}/0")


def timed(lab: Lab, row: Row, number: int, release: str) -> Cells:
    """The row's cells, and how long they took."""
    began_s = now_s()
    found = examined(lab, row, number)
    return Cells(release, row.key, found, round(now_s() - began_s, 1))


def examined(lab: Lab, row: Row, number: int) -> dict[str, str]:
    """The cells of a row by column; what could not be found out says why."""
    found: dict[str, str] = {}
    why = ""
    try:
        look(lab, row, number, found)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a row that fails is a result, and the others go on
        why = reason(error)
    missing = [name for name in COLUMNS if name not in found]
    return {**found, **dict.fromkeys(missing, "no: not reached"), **dict.fromkeys(missing[:1], f"no: {why}")}


def look(lab: Lab, row: Row, number: int, found: dict[str, str]) -> None:
    """Start the row's server and measure it. Raises, or exits, with what went wrong."""
    folder = lab.folder / str(number)
    target = lab.target.folder
    if row.family != LLAMA:
        target = random_target(row.family, target, lab.folder / "targets" / row.family.replace(" ", "-"))
    if row.weights:
        target = quantised_target(row.weights, target, folder / "target")
    draft = untrained_draft(row.head, target, folder / "draft")
    served = target if row.head == MTP and row.form == FOLDER else draft
    name, env = published(row.form, served, folder / "published")
    start = start_of(
        row, number, target=target, draft=name, redis_url=lab.redis_url, log=folder / "sglang.log"
    ).with_settings(env)
    with running(start) as server:
        case = Case(
            server=server,
            target=target,
            draft=draft,
            scratch=folder,
            prompts=lab.prompts_of(row),
            temperature=row.temperature,
        )
        measure(case, found, partial(why_no_replay, start.log))


def reason(error: BaseException) -> str:
    """What an error says: of a server that did not start, the exception at the end of its log, else the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if not isinstance(error, PacelineError | SystemExit):
        return f"{type(error).__name__}: {lines[0]}"
    raised = [number for number, line in enumerate(lines) if _EXCEPTION.match(line)]
    said = " ".join(lines[raised[-1] if raised else -1 :])
    return f"the server did not start: {said}" if "ended while starting" in lines[0] else said


if __name__ == "__main__":
    with ending_signals():
        main()
