"""Does `paceline explain` name a cause that was planted, and nothing where none was?

On the real server: a mix of labels that shifts, traffic that moves under one label, temperature 1, larger batches, a
learner on the same cores, and random weights. Each is switched off and on in turn; clients measure the speed of a
request in both, and `explain` reads the board's history of the same times. The control compares times without it.
All services have one core, so that a learner at work takes from the server; the clients have the others.

    python -m paceline.benchmarks.planted_causes [--pairs 4] [--seconds 15] [--only labels,batch] [--keep FOLDER]
    python -m paceline.benchmarks.planted_causes --again FOLDER
"""

import argparse
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console

from ..rig.deployment import LEARNER, LocalDeployment
from ..rig.machine import machine
from ..rig.models.corpus import load_corpus
from ..rig.models.target import load_tokenizer
from ..rig.progress import progress_bar
from ..rig.prompts import Prompt, domain_prompts
from ..rig.services import learner_service
from ..rig.signals import ending_signals
from .learning.lab import Lab, open_lab
from .learning.warm import ensure_warm_head
from .measure.command_line import benchmark_parser
from .measure.measured_server import MeasuredServer
from .measure.services import cpu_server, running
from .planting.judging import Compared, Outcome, judged
from .planting.measuring import Recording, recorded
from .planting.plants import LEARNT, Learning, Plant, plants
from .planting.traffic import serve_for

PROMPTS = 200
WARM_UP_S = 10.0
SEED = 0


def main() -> None:
    """Measure, or read what was measured before, and print."""
    options, console = parse(), Console()
    if options.again is not None:
        report_all(console, [judged(each) for each in kept(options.again)], options.json)
        return
    found: list[Outcome] = []
    try:
        for recording in measured(console, options):
            if options.keep is not None:
                keep(recording, options.keep)
            found.append(judged(recording))
    finally:
        report_all(console, found, options.json)  # when a later cause fails, too


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("planted_causes", __doc__)
    parser.add_argument("--pairs", type=at_least_two, default=4, help="phases without each cause and with it (4)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a phase (15)")
    parser.add_argument("--only", type=lambda text: text.split(","), help="words of the names of causes, by comma")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--keep", type=Path, help="write what was measured to this folder")
    parser.add_argument("--again", type=Path, help="measure nothing: explain again what a folder keeps")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target and drafts")
    return parser.parse_args()


def at_least_two(text: str) -> int:
    """A number of pairs; ArgumentTypeError below 2, of which no control can be made."""
    pairs = int(text)
    if pairs < 2:
        raise argparse.ArgumentTypeError(f"got {pairs}, expected at least 2: a control compares phases of one kind")
    return pairs


def measured(console: Console, options: argparse.Namespace) -> Iterator[Recording]:
    """One recording per cause, on a server and a learner that run meanwhile."""
    with progress_bar("training target and draft (once)", console) as report:
        lab = open_lab(options.data_dir, report)
        learnt = ensure_warm_head(lab, report)
    drafts = [lab.random_head(SEED), learnt]
    with tempfile.TemporaryDirectory() as scratch, services_on_one_core() as leave_to_clients:
        local = LocalDeployment.on_free_ports(Path(scratch))
        with running(local, cpu_server(local, lab.target, drafts[0]), drafts) as services, learning(local, lab, learnt):
            leave_to_clients()
            server = services.server
            server.wait_for_capture()
            server.go_live(LEARNT)
            warm_up(server, plants_of(server, lab)[0])
            for plant in chosen(server, lab, options.only):
                console.print(f"planted: {plant.name}", highlight=False)
                yield recorded(server, plant, options.pairs, options.seconds)


def keep(recording: Recording, folder: Path) -> None:
    """Write it to a file of its own in `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub("[^a-z0-9]+", "-", recording.name.lower())
    (folder / f"{name}.json").write_bytes(msgspec.json.encode(recording))


def kept(folder: Path) -> list[Recording]:
    """Those of a folder, the oldest first. SystemExit when it has none."""
    found = [msgspec.json.decode(path.read_bytes(), type=Recording) for path in folder.glob("*.json")]
    if not found:
        raise SystemExit(f"--again {folder}: got no recording, expected what --keep wrote there")
    return sorted(found, key=lambda recording: recording.off[0].began_s)


@contextmanager
def services_on_one_core() -> Iterator[Callable[[], None]]:
    """What is started meanwhile runs on one core; what is called gives this process, its clients, all the others."""
    every = os.sched_getaffinity(0)
    first = min(every)
    os.sched_setaffinity(0, {first})
    try:
        yield lambda: os.sched_setaffinity(0, every - {first} or every)
    finally:
        os.sched_setaffinity(0, every)


@contextmanager
def learning(local: LocalDeployment, lab: Lab, draft: Path) -> Iterator[None]:
    """A learner that learns when asked, in rounds that outlast a phase; hardly a gain suffices for its drafts."""
    env = local.shared_env(lab.target) | {
        "PACELINE_LEARNER": LEARNER,
        "PACELINE_TARGET_PATH": str(lab.target.folder),
        "PACELINE_DRAFT": str(draft),
        "PACELINE_DATA_DIR": str(local.folder / "learner"),
        "PACELINE_LEARN": "always",
        "PACELINE_MIN_NEW_TRACES": "100000",
        "PACELINE_MAX_WAIT_S": "0",
        "PACELINE_GATE_CONFIDENCE": "0.9999999999999999",
        "PACELINE_PASSES": "6",
        "PACELINE_ROUND_INTERVAL_S": "5",
    }
    with learner_service(log=local.folder / "learner.log", env=env):
        yield


def chosen(server: MeasuredServer, lab: Lab, only: Sequence[str] | None) -> list[Plant]:
    """The causes whose name has one of these words; all without any."""
    return [plant for plant in plants_of(server, lab) if only is None or any(word in plant.name for word in only)]


def plants_of(server: MeasuredServer, lab: Lab) -> list[Plant]:
    """All of them, the learner first."""
    known, unknown = lab.domains[0], lab.shifted
    return plants(server, prompts(lab, (known, unknown)), known, unknown, Learning(server))


def warm_up(server: MeasuredServer, learner: Plant) -> None:
    """Some traffic and a learning round: before its first one a learner loads its models, which is work as well."""
    serve_for(server.url, learner.off, WARM_UP_S)
    for is_on in (True, False):
        learner.switch(is_on)


def prompts(lab: Lab, domains: Sequence[str]) -> dict[str, list[Prompt]]:
    """By domain, from text that target and draft were not trained on."""
    held_out = {name: domain.held_out for name, domain in load_corpus(tuple(domains)).domains.items()}
    drawn = domain_prompts(held_out, load_tokenizer(lab.target.folder), PROMPTS, SEED)
    return {name: [prompt for prompt in drawn if prompt.domain == name] for name in domains}


def report_all(console: Console, found: Sequence[Outcome], json_file: Path | None) -> None:
    """Print the table, and write the file if one is asked for."""
    console.print(str(machine()), highlight=False)
    console.print("\n".join(table(found)), highlight=False, markup=False, soft_wrap=True)
    if json_file:
        json_file.write_text(json.dumps([as_fields(each) for each in found], indent=2) + "\n", encoding="utf-8")


def table(found: Sequence[Outcome]) -> Iterator[str]:
    """A row per cause. Of the control: what clients saw, and what was named."""
    yield "| planted | speed of a request, on / off | named first | factor | over the paired effect | also | control |"
    yield "|---|---|---|---|---|---|---|"
    for each in found:
        share = "unknown" if each.share is None else f"{each.share:.0%}".replace("%", " %")
        names = each.planted.named
        first, also, control = (", ".join(some) or "nothing" for some in (names[:1], names[1:], each.control.named))
        cells = [each.recording.name, seen(each.planted), first, factor(each.planted), share, also]
        yield f"| {' | '.join(cells)} | {seen(each.control)}: {control} |"


def seen(compared: Compared) -> str:
    """What clients saw, with its interval."""
    low, high = compared.effect.interval
    bounds = f" ({low:.2f} .. {high:.2f})" if math.isfinite(high) else ""
    return f"x{compared.effect.mean:.2f}{bounds}"


def factor(compared: Compared) -> str:
    """Of the cause named first, with its 95 % interval; empty where nothing stands out."""
    first = compared.explained.first
    if first is None:
        return ""
    bounds = [math.exp(bound) for bound in (first.effect.low, first.effect.high) if bound is not None]
    return f"x{math.exp(first.effect.log):.2f} ({' .. '.join(f'{bound:.2f}' for bound in bounds) or 'no interval'})"


def as_fields(outcome: Outcome) -> dict[str, object]:
    """As JSON values."""
    return {
        "planted": outcome.recording.name,
        "expected": outcome.recording.cause,
        "pairs": outcome.planted.effect.pairs,
        "paired_effect": outcome.planted.effect.mean,
        "paired_interval": outcome.planted.effect.interval,
        "share": outcome.share,
        "named": outcome.planted.named,
        "control_effect": outcome.control.effect.mean,
        "control": outcome.control.named,
    }


if __name__ == "__main__":
    with ending_signals():
        main()
