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
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

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
    """Replay what is not kept, and write the tables."""
    options = parse()
    console = Console()
    with progress_bar("the target (once)", console) as report:
        lab = open_lab(options.data_dir, report, is_chat=options.target != "tiny")
    seeds = range(options.seeds)
    with (
        ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), use_one_thread) as pool,
        progress_bar("seeds", console) as report,
    ):
        found = []
        for one in pool.map(partial(kept, lab, options.settings), seeds):
            found.append(one)
            report(len(found) / len(seeds), f"{len(found)} of {len(seeds)}")
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


def kept(lab: Lab, setting: Setting, seed: int) -> list[Request]:
    """The requests of one seed; replayed where they are not kept."""
    file = lab.folder / "choice" / f"{setting.name}-{seed}.json"
    if not file.exists():
        write_text(file, msgspec.json.encode(replayed(lab, setting, seed)).decode())
    return msgspec.json.decode(file.read_bytes(), type=list[Request])


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
    losses: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(drafters, 0.0))
    seen: Counter[str] = Counter()
    found = []
    for request in requests:
        of_label = losses[request.label]
        seen[request.label] += 1
        shares = hedge(of_label, seen[request.label])
        found.append(sum(share * request.rounds[name] for name, share in shares.items()))
        for name in drafters:
            of_label[name] += request.rounds[name] / request.tokens
    return found


def hedge(losses: Mapping[str, float], number: int) -> dict[str, float]:
    """The chance of each drafter at request `number`, counted from 1, by its `losses` so far, each of 0 to 1.

    Weights are exp(-eta * losses) with eta = sqrt(8 ln N / number) (Cesa-Bianchi and Lugosi 2006, theorem 2.3).
    """
    eta = math.sqrt(8.0 * math.log(len(losses)) / number)
    least = min(losses.values())
    weights = {name: math.exp(-eta * (loss - least)) for name, loss in losses.items()}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


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
