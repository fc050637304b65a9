"""Goodput of every pacing policy on recorded text, against the best fixed length in hindsight.

A table of step costs stands for the machine; what would be accepted is read off recorded traces. With the draft's
weights it is replayed from every position, and so exact for greedy traffic whatever length a policy chooses; without
them it is read off the served rounds, where accepted drafts stay accepted after a shorter choice.

    python -m paceline.benchmarks.pacing [--traces FILE] [--head FOLDER] [--costs FILE] [--order mixed|shift]
        [--out pacing.md]

The costs file is what pacing_costs.py writes; without one a made-up example is used.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..buffer.trace import DraftTrace
from ..policies.pacing.bandit import BANDIT_ARMS, BanditPacing
from ..policies.pacing.base import FixedSteps, Pacing
from ..policies.pacing.goodput import GoodputPacing
from ..policies.pacing.threshold import ThresholdPacing
from ..rig.machine import machine
from ..rig.trace_file import read_card, read_traces
from .learning.recorded import add_trace_options, trace_file
from .measure.command_line import benchmark_parser
from .measure.step_costs import Costs, load_costs
from .pacing_baselines.ema import SGLANG_SLOTS, EmaPacing
from .pacing_baselines.smartspec import SmartSpecPacing

MADE_UP_TEXTS, MADE_UP_TOKENS = 300, 64


@dataclass(frozen=True, slots=True)
class Text:
    """Drafts that would be accepted after every committed token of one request, from its first root on."""

    domain: str
    runs: Sequence[int]


@dataclass(frozen=True, slots=True)
class Served:
    """What one policy made of one stream."""

    tokens: int
    cost_ms: float
    lengths: Counter[int]  # steps chosen -> decode steps
    chosen_s: float  # spent in the policy

    @property
    def goodput(self) -> float:
        """Tokens per second."""
        return self.tokens / self.cost_ms * 1e3


def main() -> None:
    """Simulate and print."""
    options = parse()
    costs = load_costs(options.costs)
    texts, source = load_texts(trace_file(options), options.head, costs.max_steps)
    head = (
        f"{source}; {len(texts)} texts, order {options.order}; costs: {costs.name}, noise {options.noise:.0%}; "
        f"{options.seeds} seeds; simulated on {machine()}"
    )
    columns = (
        "| batch | policy | tokens/s | of the best fixed length: mean (least) | of plain decoding | mean steps "
        "| us per decision |"
    )
    rows = [row for batch in sorted(costs.cost_ms) for row in table(batch, texts, costs, options)]
    text = "\n".join([head, "", columns, "|---|---|---|---|---|---|---|", *rows]) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("pacing", __doc__)
    add_trace_options(parser)
    parser.add_argument("--head", type=Path, help="another draft than the one that served, to be replayed instead")
    parser.add_argument("--costs", type=Path, help="a table of step costs; default: an example")
    parser.add_argument("--order", choices=("mixed", "shift"), default="shift", help="shift: one domain after another")
    parser.add_argument("--noise", type=float, default=0.05, help="of step costs, as a share")
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


def load_texts(path: Path | None, other_head: Path | None, max_steps: int) -> tuple[list[Text], str]:
    """Runs of every text, and where they come from."""
    if path is None:
        return list(made_up(np.random.default_rng(0), max_steps)), "made up: no recorded traces found"
    card, traces = read_card(path), [trace for trace in read_traces(path) if len(trace.rounds)]
    head, target = other_head or Path(card["head"]), path.parents[2] / "targets" / card["target"]
    if head.exists() and target.exists():
        source = f"recorded {card['setting']}, {head.name} replayed from every position"
        return replayed(traces, head, target, max_steps), source
    return [Text(domain(trace), recorded_runs(trace)) for trace in traces], f"recorded {card['setting']}, served rounds"


def made_up(rng: np.random.Generator, max_steps: int) -> Iterator[Text]:
    """Texts of three domains that differ in ease; runs are geometric and independent."""
    for number in range(MADE_UP_TEXTS):
        place = number % 3
        ease = rng.beta(1.0 + 2.0 * place, 3.0)
        runs = np.minimum(rng.geometric(1.0 - ease, MADE_UP_TOKENS) - 1, max_steps)
        yield Text(f"made-up-{place}", runs.tolist())


def domain(trace: DraftTrace) -> str:
    """Of the prompt: the part of the request's id before its number."""
    return trace.request_id.rpartition("-")[0]


def recorded_runs(trace: DraftTrace) -> list[int]:
    """Runs from the served rounds: after a root with a drafts accepted, the token i further has a - i."""
    return [int(accepted) - i for accepted in trace.visible_accepted() for i in range(int(accepted) + 1)]


def replayed(traces: Sequence[DraftTrace], head: Path, target: Path, max_steps: int) -> list[Text]:
    """Runs of the draft in `head` from every position."""
    # Imported late: torch is not needed for made-up texts.
    from ..learner.judging.replay import replay_traces  # noqa: PLC0415
    from ..learner.model.draft_io import load_draft, load_target_embedding  # noqa: PLC0415

    draft = load_draft(head, load_target_embedding(target))
    found = replay_traces(draft, traces, max_steps)
    kept = [run[int(trace.rounds.starts[0]) : len(run) - 1] for run, trace in zip(found, traces, strict=True)]
    return [Text(domain(trace), run[run >= 0].tolist()) for trace, run in zip(traces, kept, strict=True)]


def table(batch: int, texts: Sequence[Text], costs: Costs, options: argparse.Namespace) -> Iterator[str]:
    """The rows of one batch size."""
    fixed = {k: serve_all(f"fixed {k}", batch, texts, costs, options) for k in range(costs.max_steps + 1)}
    best = {k: float(np.mean([run.goodput for run in runs])) for k, runs in fixed.items()}
    champion = max(best, key=best.__getitem__)
    rows = {f"best fixed length ({champion})": fixed[champion], "plain decoding": fixed[0], "fixed 3": fixed[3]}
    names = ("paceline", "SGLang's EMA", "SmartSpec", "SpecDec++ threshold", "TLT's bandit")
    rows |= {name: serve_all(name, batch, texts, costs, options) for name in names}
    for name, runs in rows.items():
        ratios = [run.goodput / max(of[i].goodput for of in fixed.values()) for i, run in enumerate(runs)]
        plain = np.mean([run.goodput / of.goodput for run, of in zip(runs, fixed[0], strict=True)])
        goodput = np.mean([run.goodput for run in runs])
        lengths = sum((run.lengths for run in runs), Counter[int]())
        steps = sum(k * n for k, n in lengths.items()) / lengths.total()
        cost_us = sum(run.chosen_s for run in runs) / lengths.total() * 1e6
        yield (
            f"| {batch} | {name} | {goodput:.1f} | {np.mean(ratios):.3f} ({min(ratios):.3f}) | {plain:.3f} "
            f"| {steps:.1f} | {cost_us:.0f} |"
        )
    if batch in costs.no_speculation_ms:
        alone = 1e3 * batch / costs.no_speculation_ms[batch]
        of = {"best": alone / max(best.values()), "plain": alone / best[0]}
        yield f"| {batch} | a server without speculation | {alone:.1f} | {of['best']:.3f} | {of['plain']:.3f} | | |"


def make_policy(name: str, costs: Costs, seed: int) -> Pacing:
    """A policy that has seen nothing, or what it asks to have measured beforehand."""
    most = costs.max_steps
    if name.startswith("fixed"):
        return FixedSteps(int(name.split()[1]))
    if name == "paceline":
        return GoodputPacing(range(most + 1))
    if name == "SGLang's EMA":
        fitting = {b: tuple(k for k in slot.candidates if k <= most) for b, slot in SGLANG_SLOTS.items()}
        return EmaPacing(3, {b: replace(slot, candidates=fitting[b]) for b, slot in SGLANG_SLOTS.items()})
    if name == "SmartSpec":
        return SmartSpecPacing(most, {(b, k): ms for b, row in costs.cost_ms.items() for k, ms in enumerate(row)})
    if name == "SpecDec++ threshold":
        return ThresholdPacing(most)
    arms = {b: tuple(k for k in offered if k <= most) or (most,) for b, offered in BANDIT_ARMS.items()}
    return BanditPacing(np.random.default_rng(seed), arms)


def serve_all(name: str, batch: int, texts: Sequence[Text], costs: Costs, options: argparse.Namespace) -> list[Served]:
    """One run per seed; a seed fixes the stream, not the noise of costs a policy meets."""
    found = []
    for seed in range(options.seeds):
        stream = list(ordered(texts, batch, options.order, np.random.default_rng(seed)))
        noise = np.random.default_rng((seed, 1))
        found.append(serve(make_policy(name, costs, seed), batch, stream, costs.cost_ms[batch], noise, options.noise))
    return found


def ordered(texts: Sequence[Text], batch: int, order: str, rng: np.random.Generator) -> Iterator[Text]:
    """Every text `batch` times, so that decode steps are as many at every batch size; shuffled, or by domain."""
    shuffled = [texts[i] for _ in range(batch) for i in rng.permutation(len(texts))]
    yield from sorted(shuffled, key=lambda text: text.domain) if order == "shift" else shuffled


def serve(
    policy: Pacing,
    batch: int,
    stream: Sequence[Text],
    cost_ms: Sequence[float],
    noise: np.random.Generator,
    share: float,
) -> Served:
    """Serve the stream with `batch` requests at a time; ends when the last ones no longer fill the batch."""
    waiting = iter(stream)
    slots = [(next(waiting).runs, 0) for _ in range(batch)]
    tokens, spent_ms, lengths, chosen_s = 0, 0.0, Counter[int](), 0.0
    while True:
        began_s = time.perf_counter()
        k = policy.steps(batch)
        chosen_s += time.perf_counter() - began_s
        accepted = [min(runs[at], k) for runs, at in slots]
        step_ms = cost_ms[k] * float(np.exp(noise.normal(0.0, share)))
        tokens, spent_ms = tokens + sum(accepted) + batch, spent_ms + step_ms
        lengths[k] += 1
        began_s = time.perf_counter()
        policy.observe(batch, k, accepted, step_ms)
        chosen_s += time.perf_counter() - began_s
        for i, drafts in enumerate(accepted):
            runs, at = slots[i]
            slots[i] = (runs, at + drafts + 1)
            if at + drafts + 1 >= len(runs):
                following = next(waiting, None)
                if following is None:
                    return Served(tokens, spent_ms, lengths, chosen_s)
                slots[i] = (following.runs, 0)


if __name__ == "__main__":
    main()
