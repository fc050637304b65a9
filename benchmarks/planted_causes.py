"""Does `paceline explain` name a cause that was planted, and nothing where none was?

On the real server: a mix of labels that shifts, traffic that moves under one label, temperature 1, larger batches, a
learner on the same cores, and random weights. Each is switched off and on in turn; clients measure the speed of a
request in both, and `explain` reads the board's history of the same times. The control compares times without it.

    python -m paceline.benchmarks.planted_causes [--pairs 2] [--seconds 20] [--only labels,batch] [--data-dir .paceline]
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from ..policies.readings.causes.explanation import Explanation
from ..rig.deployment import LEARNER, LocalDeployment
from ..rig.machine import machine
from ..rig.models.corpus import load_corpus
from ..rig.models.target import load_tokenizer
from ..rig.progress import progress_bar
from ..rig.prompts import Prompt, domain_prompts
from ..rig.services import learner_service
from .learning.lab import Lab, open_lab
from .learning.warm import ensure_warm_head
from .measure.command_line import benchmark_parser
from .measure.measured_server import MeasuredServer
from .measure.services import cpu_server, running
from .planting.measuring import Outcome, measured
from .planting.plants import LEARNT, Learning, Plant, plants

PROMPTS = 200
SEED = 0


def main() -> None:
    """Measure and print."""
    options, console = parse(), Console()
    with progress_bar("training target and draft (once)", console) as report:
        lab = open_lab(options.data_dir, report)
        learnt = ensure_warm_head(lab, report)
    drafts = [lab.random_head(SEED), learnt]
    with tempfile.TemporaryDirectory() as scratch:
        local = LocalDeployment.on_free_ports(Path(scratch))
        with running(local, cpu_server(local, lab.target, drafts[0]), drafts) as services, learning(local, lab, learnt):
            server = services.server
            server.wait_for_capture()
            server.go_live(LEARNT)
            found: list[Outcome] = []
            try:
                found.extend(measure(console, server, plant, options) for plant in chosen(server, lab, options.only))
            finally:
                report_all(console, found, options)  # when a later cause fails, too


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("planted_causes", __doc__)
    parser.add_argument("--pairs", type=int, default=2, help="phases without each cause and with it (2)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a phase (20)")
    parser.add_argument("--only", type=lambda text: text.split(","), help="words of the names of causes, by comma")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target and drafts")
    return parser.parse_args()


@contextmanager
def learning(local: LocalDeployment, lab: Lab, draft: Path) -> Iterator[None]:
    """A learner that learns when asked, and whose drafts do not go live: no gain suffices in so short a time."""
    env = local.shared_env(lab.target) | {
        "PACELINE_LEARNER": LEARNER,
        "PACELINE_TARGET_PATH": str(lab.target.folder),
        "PACELINE_DRAFT": str(draft),
        "PACELINE_DATA_DIR": str(local.folder / "learner"),
        "PACELINE_LEARN": "always",
        "PACELINE_MIN_NEW_TRACES": "100000",
        "PACELINE_MAX_WAIT_S": "0",
        "PACELINE_GATE_CONFIDENCE": "0.999999999",
        "PACELINE_PASSES": "16",
        "PACELINE_ROUND_INTERVAL_S": "5",
    }
    with learner_service(log=local.folder / "learner.log", env=env):
        yield


def chosen(server: MeasuredServer, lab: Lab, only: Sequence[str] | None) -> list[Plant]:
    """The causes whose name has one of these words; all without any."""
    known, unknown = lab.domains[0], lab.shifted
    found = plants(server, prompts(lab, (known, unknown)), known, unknown, Learning(server))
    return [plant for plant in found if only is None or any(word in plant.name for word in only)]


def prompts(lab: Lab, domains: Sequence[str]) -> dict[str, list[Prompt]]:
    """By domain, from text that target and draft were not trained on."""
    held_out = {name: domain.held_out for name, domain in load_corpus(tuple(domains)).domains.items()}
    drawn = domain_prompts(held_out, load_tokenizer(lab.target.folder), PROMPTS, SEED)
    return {name: [prompt for prompt in drawn if prompt.domain == name] for name in domains}


def measure(console: Console, server: MeasuredServer, plant: Plant, options: argparse.Namespace) -> Outcome:
    """Measure one cause, and say so."""
    console.print(f"planted: {plant.name}", highlight=False)
    return measured(server, plant, options.pairs, options.seconds)


def report_all(console: Console, found: Sequence[Outcome], options: argparse.Namespace) -> None:
    """Print the table, and write the file if one is asked for."""
    console.print(f"{machine()}; {options.pairs} pairs of {options.seconds:.0f} s", highlight=False)
    console.print("\n".join(table(found)), highlight=False, markup=False, soft_wrap=True)
    if options.json:
        options.json.write_text(json.dumps([as_fields(each) for each in found], indent=2) + "\n", encoding="utf-8")


def table(found: Sequence[Outcome]) -> Iterator[str]:
    """A row per cause."""
    yield "| planted | speed of a request, on / off | named first | factor | over the paired effect | also | control |"
    yield "|---|---|---|---|---|---|---|"
    for each in found:
        low, high = each.effect.interval
        effect = f"x{each.effect.mean:.2f} ({low:.2f} .. {high:.2f})"
        share = "unknown" if each.share is None else f"{each.share:.0%}"
        names = named(each.explained)
        first, also, control = (", ".join(some) or "nothing" for some in (names[:1], names[1:], named(each.control)))
        yield f"| {each.plant.name} | {effect} | {first} | {factor(each.explained)} | {share} | {also} | {control} |"


def named(explained: Explanation) -> list[str]:
    """Causes that stand out, with their factors."""
    return [finding.cause for finding in explained.findings if not finding.effect.is_noise]


def factor(explained: Explanation) -> str:
    """Of the cause named first, with its 95 % interval; empty where nothing stands out."""
    if explained.first is None:
        return ""
    effect = explained.first.effect
    bounds = [math.exp(bound) for bound in (effect.low, effect.high) if bound is not None]
    return f"x{math.exp(effect.log):.2f} ({' .. '.join(f'{bound:.2f}' for bound in bounds) or 'no interval'})"


def as_fields(outcome: Outcome) -> dict[str, object]:
    """As JSON values."""
    return {
        "planted": outcome.plant.name,
        "expected": outcome.plant.cause,
        "paired_effect": outcome.effect.mean,
        "paired_interval": outcome.effect.interval,
        "share": outcome.share,
        "named": named(outcome.explained),
        "control": named(outcome.control),
    }


if __name__ == "__main__":
    main()
