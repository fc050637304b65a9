"""One draft for all streams, a draft for each, drafters without a model, and a choice among them by label.

    python -m paceline.benchmarks.learning.record --target smollm2 --settings t0-k3     # eight streams of a chat model
    python -m paceline.benchmarks.learning.choice --target smollm2

The streams are interleaved and replayed. Every request is drafted by every drafter before any learns it. At half, each
label gets a draft of its own, begun with the weights of the one draft, which goes on learning from all; so the later
half takes twice the training. The choice is Hedge with full information, a set of weights per label. Its rounds are an
expectation. A seed, an order of the requests, is kept when it is done: an interrupted bench goes on.
"""

import argparse
import copy
import math
import multiprocessing
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from ...buffer.stream.trace import DraftTrace
from ...learner.disk import write_text
from ...learner.judging import paired_replay
from ...learner.model.draft_io import load_draft, load_target_embedding
from ...learner.training.plan import TrainingPlan
from ...learner.training.trainer import DraftTrainer
from ...policies.model_free.drafter import Drafter, judged_tokens, rounds_needed
from ...policies.model_free.ngram_table import NgramTable
from ...policies.model_free.prompt_lookup import PromptLookup
from ...rig.progress import progress_bar
from ...rig.runs import machine
from ...rig.trace_file import read_traces
from ..measure.command_line import benchmark_parser
from .figures import Mean
from .lab import Lab, open_lab
from .programme import PROGRAMMES, Setting
from .runs import REPLAY_TRACES, use_one_thread
from .stream import domain_of

ONE = "one draft"
OWN = "a draft per label"
LOOKUP = PromptLookup.name
NGRAM = NgramTable.name
#: Requests of a learning round of the one draft, and of a label's.
CADENCE = 28
LABEL_CADENCE = 7


class Request(msgspec.Struct, frozen=True):
    """One request: its label, its judged tokens, and the verify rounds that each drafter needs for them."""

    label: str
    tokens: int
    rounds: dict[str, float]


#: The rounds of each request, in order, under one way to draft.
Rule = Callable[[Sequence[Request]], list[float]]


class Learning:
    """A draft that learns from what it is shown, `cadence` requests at a time."""

    def __init__(self, trainer: DraftTrainer, cadence: int, seen: Sequence[DraftTrace] = ()) -> None:
        self.trainer = trainer
        self._cadence = cadence
        self._seen = list(seen)
        self._waiting: list[DraftTrace] = []

    def show(self, trace: DraftTrace) -> None:
        """Learn once `cadence` requests wait."""
        self._waiting.append(trace)
        if len(self._waiting) == self._cadence:
            self.trainer.fit(self._waiting, self._seen[-REPLAY_TRACES:])
            self._seen += self._waiting
            self._waiting = []

    def begun_for(self, label: str) -> "Learning":
        """One that goes on with these weights, and with what was learnt of `label`."""
        draft = self.trainer.draft
        shared = {id(draft.embedding_WH): draft.embedding_WH}  # the target's: large, and never changed
        trainer = DraftTrainer(copy.deepcopy(draft, shared), self.trainer.plan)
        seen = [trace for trace in self._seen if domain_of(trace.request_id) == label]
        return Learning(trainer, LABEL_CADENCE, seen)


def main() -> None:
    """Replay what is not kept, an order in each process, and write the table."""
    options = parse()
    console = Console()
    with progress_bar("the target (once)", console) as report:
        lab = open_lab(options.data_dir, report, is_chat=options.target != "tiny")
    pool = ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), use_one_thread)
    with pool, progress_bar("seeds", console) as report:
        found = []
        for one in pool.map(partial(kept, lab, options.settings), range(options.seeds)):
            found.append(one)
            report(len(found) / options.seeds, f"{len(found)} of {options.seeds}")
    text = f"{markdown(found)}\n{machine()}\n"
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "choice.md", text)
    console.print(text, highlight=False, soft_wrap=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("learning.choice", __doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="cache of target, heads and traces")
    parser.add_argument("--target", choices=sorted(PROGRAMMES), default="tiny", help="a small one, or a chat model")
    parser.add_argument("--settings", type=Setting.named, default=Setting(0.0, 3), help="of the traces; default: t0-k3")
    parser.add_argument("--seeds", type=int, default=3, help="orders of the requests (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes of one thread each (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning"))
    return parser.parse_args()


def kept_or_made(file: Path, kind: Any, make: Callable[[], Any]) -> Any:
    """What `file` holds, of the type `kind`; made and written where it is not there."""
    if not file.exists():
        write_text(file, msgspec.json.encode(make()).decode())
    return msgspec.json.decode(file.read_bytes(), type=kind)


def kept(lab: Lab, setting: Setting, seed: int) -> list[Request]:
    """The requests of one seed; replayed where they are not kept."""
    file = lab.folder / "choice" / f"{setting.name}-{seed}.json"
    found: list[Request] = kept_or_made(file, list[Request], lambda: replayed(lab, setting, seed))
    return found


def replayed(lab: Lab, setting: Setting, seed: int) -> list[Request]:
    """Replay all streams in the order of `seed`: some ten minutes for eight streams of a chat model."""
    traces = [trace for domain in lab.domains for trace in read_traces(lab.trace_file(setting, domain))]
    random.Random(seed).shuffle(traces)
    draft = load_draft(lab.random_head(seed), load_target_embedding(lab.target.folder))
    one = Learning(DraftTrainer(draft, TrainingPlan(steps=setting.steps, seed=seed)), CADENCE)
    own: dict[str, Learning] = {}
    free: list[Drafter] = [PromptLookup(), NgramTable()]
    found = []
    for place, trace in enumerate(traces):
        if place == len(traces) // 2:
            own = {domain: one.begun_for(domain) for domain in lab.domains}
        label = domain_of(trace.request_id)
        rounds = {drafter.name: float(rounds_needed(drafter, trace, setting.steps)) for drafter in free}
        rounds[ONE] = rounds_of(one, trace, setting.steps)
        rounds[OWN] = rounds_of(own[label], trace, setting.steps) if own else rounds[ONE]
        found.append(Request(label, judged_tokens(trace), rounds))
        one.show(trace)
        if own:
            own[label].show(trace)
    return found


def rounds_of(learning: Learning, trace: DraftTrace, steps: int) -> float:
    """Verify rounds that its draft needs now."""
    return paired_replay.tallies(learning.trainer.draft, [trace], steps)[trace.trace_id].rounds


def hedged(requests: Sequence[Request], drafters: Sequence[str]) -> list[float]:
    """Expected rounds of each request, chosen by Hedge with full information, a set of weights per label.

    A drafter's loss is rounds per token.
    """
    chooser = ChoiceByLabel(drafters)
    found = []
    for request in requests:
        found.append(sum(share * request.rounds[name] for name, share in chooser.shares(request.label).items()))
        chooser.learn(request.label, {name: request.rounds[name] / request.tokens for name in drafters})
    return found


class ChoiceByLabel:
    """Hedge, a set of weights per label. A new label begins with the mean of what all requests have lost, once."""

    def __init__(self, drafters: Sequence[str]) -> None:
        self._by_label: dict[str, Hedge] = {}
        self._sums = dict.fromkeys(drafters, 0.0)
        self._requests = 0

    def shares(self, label: str) -> dict[str, float]:
        """The chance of each drafter at the label's next request."""
        return self._of(label).shares()

    def learn(self, label: str, losses: Mapping[str, float]) -> None:
        """What a request of the label would have lost with each drafter."""
        self._of(label).learn(losses)
        self._requests += 1
        for name, loss in losses.items():
            self._sums[name] += loss

    def _of(self, label: str) -> "Hedge":
        if label not in self._by_label:
            self._by_label[label] = Hedge([*self._sums])
            if self._requests:
                self._by_label[label].learn({name: total / self._requests for name, total in self._sums.items()})
        return self._by_label[label]


class Hedge:
    """Hedge with full information whose rate fits the losses: AdaHedge (de Rooij et al., JMLR 15, 2014).

    With L the losses so far, drafters have shares of exp(-eta L), eta = ln N / D. The mix loss of a request is the
    growth of -ln(mean exp(-eta L)) / eta, and D adds up what the expected loss of every request is above it. So a
    drafter that is clearly best soon has all, whatever scale the losses have.
    """

    def __init__(self, drafters: Sequence[str]) -> None:
        self._losses = dict.fromkeys(drafters, 0.0)
        self._gap = 0.0

    def shares(self) -> dict[str, float]:
        """The chance of each drafter at the next request."""
        weights = self._weights(self._eta)
        return {name: weight / sum(weights.values()) for name, weight in weights.items()}

    def learn(self, losses: Mapping[str, float]) -> None:
        """What that request would have lost with each drafter."""
        shares = self.shares()
        expected = sum(share * losses[name] for name, share in shares.items())
        eta = self._eta
        before = self._mixed(eta)
        for name, loss in losses.items():
            self._losses[name] += loss
        self._gap += max(expected - (self._mixed(eta) - before), 0.0)  # below zero only by rounding

    @property
    def _eta(self) -> float:
        return math.log(len(self._losses)) / self._gap if self._gap else math.inf

    def _weights(self, eta: float) -> dict[str, float]:
        least = min(self._losses.values())
        return {name: 1.0 if loss == least else math.exp(-eta * (loss - least)) for name, loss in self._losses.items()}

    def _mixed(self, eta: float) -> float:
        weights = self._weights(eta).values()
        return min(self._losses.values()) - math.log(sum(weights) / len(weights)) / eta


def markdown(seeds: Sequence[Sequence[Request]]) -> str:
    """Accepted drafts per round over the later half by drafter and label, and of each choice."""
    labels = sorted({request.label for request in seeds[0]})
    columns: dict[str, Rule] = {name: partial(fixed, name) for name in (ONE, OWN, LOOKUP, NGRAM)}
    columns |= {
        "choice of all": partial(hedged, drafters=tuple(columns)),
        "choice without a draft per label": partial(hedged, drafters=(ONE, LOOKUP, NGRAM)),
        "the label's best, known beforehand": best_known,
    }
    lines = [("label", *columns), ("---",) * (1 + len(columns))]
    for label in (None, *labels):
        cells = [Mean.of([accepted(of, seed, label) for seed in seeds]).text() for of in columns.values()]
        lines.append((label or "all", *cells))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def fixed(name: str, requests: Sequence[Request]) -> list[float]:
    """Rounds of each request with one drafter."""
    return [request.rounds[name] for request in requests]


def best_known(requests: Sequence[Request]) -> list[float]:
    """Rounds of each request with the drafter that needs fewest for its label over the later half."""
    later = requests[len(requests) // 2 :]
    best = {}
    for label in {request.label for request in requests}:
        sums = {name: sum(one.rounds[name] for one in later if one.label == label) for name in requests[0].rounds}
        best[label] = min(sums, key=lambda name: sums[name])
    return [request.rounds[best[request.label]] for request in requests]


def accepted(of: Rule, requests: Sequence[Request], label: str | None) -> float:
    """Accepted drafts per round over the later half, of one label or of all."""
    later = range(len(requests) // 2, len(requests))
    rounds = of(requests)
    chosen = [place for place in later if label in {None, requests[place].label}]
    needed = sum(rounds[place] for place in chosen)
    return (sum(requests[place].tokens for place in chosen) - needed) / needed


if __name__ == "__main__":
    main()
