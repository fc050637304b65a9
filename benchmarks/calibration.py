"""Predicted against served accept length, one point per draft version.

A server starts with an untrained draft and then takes over one trained version after another. Before each swap the
version is replayed on what its predecessor has just served: that is the prediction. After the swap it serves as many
requests for other prompts of the same domains, and then the prompts of the prediction once more. The first error
includes the difference between prompts, the second does not: decoding is greedy, so every draft yields the same text,
and on the same text replay must be exact.

    python -m paceline.benchmarks.calibration [--requests 48] [--fits 3] [--data-dir .paceline]

Prints a Markdown table and writes it, with a plot, to --out. Target, warm head and traces are made once and kept in
--data-dir; with them it takes under five minutes.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ..buffer.trace import DraftTrace
from ..learner.disk import write_folder
from ..learner.judging.replay import replay_traces
from ..learner.model.draft_io import load_draft, load_target_embedding, save_draft
from ..learner.training.trainer import DraftTrainer, TrainingPlan
from ..rig.deployment import LocalDeployment
from ..rig.machine import machine
from ..rig.models.corpus import load_corpus
from ..rig.models.target import load_tokenizer
from ..rig.progress import progress_bar
from ..rig.prompts import PROMPT_TOKENS, Prompt, domain_prompts
from ..rig.signals import ending_signals
from ..rig.trace_file import read_traces
from .learning.lab import Lab, open_lab
from .learning.prediction import Prediction, compare, markdown, plot
from .learning.record import chain_flags, ensure_recorded, serve
from .learning.setting import Setting
from .learning.warm import ensure_warm_head
from .measure.command_line import benchmark_parser
from .measure.measured_server import MeasuredServer, under_new_ids
from .measure.services import cpu_server, running

SETTING = Setting(0.0, 5)
#: Recorded traces per domain that each version is trained on, in addition to those of the version before it.
FIT_PER_DOMAIN = 8
SEED = 1  # of the prompts; the traces were recorded with another seed
#: Windows of text may repeat, and prompts that were trained on are left out.
SPARE_PROMPTS = 8


@dataclass(frozen=True, slots=True)
class Version:
    """A draft that will be served."""

    name: str
    folder: Path


def main() -> None:
    """Train versions, serve them one after another, and print."""
    options, console = parse(), Console()
    lab = prepare(options.data_dir, options.fits, console)
    with tempfile.TemporaryDirectory() as scratch:
        versions, used = trained(lab, Path(scratch) / "drafts", options.fits, console)
        batches = fresh_prompts(lab, used, options.requests, len(versions))
        with serving(lab, Path(scratch), versions) as server:
            predictions = list(calibrate(lab, server, versions, batches, console))
    text = (
        f"machine: {machine()}; {options.requests} requests per version and kind, temperature "
        f"{SETTING.temperature:g}, {SETTING.steps} drafts, seed {SEED}\n\n{markdown(predictions)}"
    )
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "calibration.md").write_text(text, encoding="utf-8")
    if not plot(predictions, options.out / "calibration.png"):
        console.print("no plot: matplotlib is not installed")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("calibration", __doc__)
    parser.add_argument("--requests", type=int, default=48, help="requests per version and kind of prompts (48)")
    parser.add_argument("--fits", type=int, default=3, help="versions trained from each of the two heads (3)")
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/calibration"), help="folder of the results"
    )
    return parser.parse_args()


def prepare(data_dir: Path, fits: int, console: Console) -> Lab:
    """Target, heads and traces to train on; takes minutes the first time, and seconds later."""
    with progress_bar("training the target (once)", console) as report:
        lab = open_lab(data_dir, report)
    with progress_bar("training the warm head (once)", console) as report:
        ensure_warm_head(lab, report)
    ensure_recorded(lab, SETTING, FIT_PER_DOMAIN * fits, console)
    return lab


def trained(lab: Lab, folder: Path, fits: int, console: Console) -> tuple[list[Version], list[DraftTrace]]:
    """The untrained draft, `fits` versions trained from it, the warm head, and versions trained from that.

    Also returns the traces they were trained on, which no prediction may use.
    """
    each = FIT_PER_DOMAIN * len(lab.domains)
    traces = read_traces(lab.trace_file(SETTING))[: each * fits]
    random, warm = Version("random", lab.random_head(0)), Version("warm", lab.warm_head)
    versions = [random, *_fitted(lab, random, folder, traces, fits, console)]
    versions += [warm, *_fitted(lab, warm, folder, traces, fits - 1, console)]
    return versions, traces


def fresh_prompts(lab: Lab, used: Sequence[DraftTrace], requests: int, batches: int) -> list[list[Prompt]]:
    """Batches of `requests` prompts of held-out text, none of them that of a trace in `used`."""
    held_out = {name: domain.held_out for name, domain in load_corpus(lab.domains).domains.items()}
    seen = {tuple(trace.tokens[:PROMPT_TOKENS].tolist()) for trace in used}
    each = -(-requests * batches // len(held_out))
    per_domain = each + len(seen) // len(held_out) + SPARE_PROMPTS
    drawn = domain_prompts(held_out, load_tokenizer(lab.target.folder), per_domain, SEED)
    return batched(drawn, seen, requests, batches)


def batched(
    prompts: Sequence[Prompt], seen: AbstractSet[tuple[int, ...]], requests: int, batches: int
) -> list[list[Prompt]]:
    """Batches with the domains in turn, no text twice and none that is in `seen`; exits when there are too few."""
    left: dict[str, list[Prompt]] = {prompt.domain: [] for prompt in prompts}
    taken = set(seen)
    for prompt in prompts:
        if prompt.input_ids not in taken:
            taken.add(prompt.input_ids)
            left[prompt.domain].append(prompt)
    each = -(-requests * batches // len(left))
    if min(map(len, left.values())) < each:
        got = {domain: len(prompts) for domain, prompts in left.items()}
        raise SystemExit(f"prompts: got {got}, expected {each} of each domain; ask for fewer requests")
    in_turn = [left[domain][number] for number in range(each) for domain in left]
    return [in_turn[requests * n : requests * (n + 1)] for n in range(batches)]


@contextmanager
def serving(lab: Lab, scratch: Path, versions: Sequence[Version]) -> Iterator[MeasuredServer]:
    """Redis and a server that drafts with the first version; their indices are their numbers on the board."""
    local = LocalDeployment.on_free_ports(scratch)
    sglang = cpu_server(local, lab.target, versions[0].folder, chain_flags(SETTING.steps))
    with running(local, sglang, [version.folder for version in versions]) as services:
        services.server.wait_for_capture()
        yield services.server


def calibrate(
    lab: Lab, server: MeasuredServer, versions: Sequence[Version], batches: Sequence[Sequence[Prompt]], console: Console
) -> Iterator[Prediction]:
    """Serve the first batch under the first version; then predict, swap and serve every later version."""
    embedding = load_target_embedding(lab.target.folder)
    before = served(server, 0, batches[0], console)
    for number, version in enumerate(versions[1:], start=1):
        runs = replay_traces(load_draft(version.folder, embedding), before, SETTING.steps)
        server.go_live(number)
        other = served(server, number, batches[number], console)
        same = served(server, number, batches[number - 1], console)
        yield compare(number, version.name, list(zip(before, runs, strict=True)), same, other)
        before = other


def served(server: MeasuredServer, number: int, prompts: Sequence[Prompt], console: Console) -> list[DraftTrace]:
    """Traces of the prompts, in their order, all drafted by version `number`; exits when one is not."""
    asked = under_new_ids(prompts, f"v{number}")
    with progress_bar(f"serving version {number}", console) as report:
        serve(server, SETTING, asked, report)
    server.drained()
    found = {entry.trace.request_id: entry.trace for entry in server.buffer.replay(2 * len(asked))}
    traces = [found[prompt.request_id] for prompt in asked if prompt.request_id in found]
    drafted_by = {trace.draft_version for trace in traces}
    if len(traces) < len(asked) or drafted_by != {number}:
        raise SystemExit(
            f"got {len(traces)} traces by versions {sorted(drafted_by)}, expected {len(asked)} by {number}"
        )
    return traces


def _fitted(
    lab: Lab, start: Version, folder: Path, traces: Sequence[DraftTrace], fits: int, console: Console
) -> list[Version]:
    """Versions trained from `start`, each one fit further than the last: on new traces, replaying the older ones."""
    draft, each = load_draft(start.folder, load_target_embedding(lab.target.folder)), FIT_PER_DOMAIN * len(lab.domains)
    trainer, versions = DraftTrainer(draft, TrainingPlan(steps=SETTING.steps)), list[Version]()
    with progress_bar(f"training from the {start.name} head", console) as report:
        for fit in range(fits):
            trainer.fit(traces[each * fit : each * (fit + 1)], traces[: each * fit])
            version = Version(f"{start.name} + {fit + 1}", folder / f"{start.name}-{fit + 1}")
            write_folder(version.folder, lambda place: save_draft(trainer.draft, place))
            versions.append(version)
            report((fit + 1) / fits, version.name)
    return versions


if __name__ == "__main__":
    with ending_signals():
        main()
