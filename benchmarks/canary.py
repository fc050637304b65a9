"""How often does the canary test reject an equal draft, and how soon does it find a worse or a better one?

Requests are drawn with replacement, whole, from a file of recorded traces, so rounds stay as dependent as they were
served; without a file they are generated, with as much variance between requests. Both arms serve the same number of
requests at a time. The test is asked after every tick; counted are the verify rounds the canary served until the
verdict. Better and worse drafts are the recorded rounds with drafts added or taken away at random.

    python -m paceline.benchmarks.canary [--traces FILE] [--canaries 100] [--out canary.md]
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from ..policies.acceptance import Tally
from ..policies.canary import Arm, Basis, CanaryDecision, CanaryRules, CanaryTest, CanaryVerdict
from ..rig.machine import machine
from ..rig.trace_file import read_card, read_traces
from .learning.recorded import add_trace_options, trace_file
from .measure.command_line import benchmark_parser

MAX_STEPS = 5  # drafts per round of the generated requests
GENERATED_REQUESTS, GENERATED_TOKENS = 400, 64
DEAD_SHARE = 0.02  # rounds of a dead draft in which its first draft is accepted
HARD_LENGTH = 1.5  # accept length of the hard requests, the lowest live level that a dead draft is compared with

Rounds = list[int]  # accepted drafts of the rounds of one request
Change = Callable[[int, np.random.Generator], int]


@dataclass(frozen=True, slots=True)
class Question:
    """One row: which draft is the canary, on which requests."""

    name: str
    requests: Sequence[Rounds]
    change: Change
    canaries: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one canary ended."""

    verdict: CanaryVerdict
    canary_rounds: int  # served until the verdict, those not yet reported included


@dataclass(frozen=True, slots=True)
class Window:
    """Rounds of one request that are reported together."""

    tick: int
    arm: Arm
    request_id: str
    served: Tally
    ended: bool


def main() -> None:
    """Simulate and print."""
    options = parse()
    began_s = time.monotonic()
    requests, source = load(trace_file(options))
    rows = (line(question, options) for question in questions(requests, options.canaries))
    text = "\n".join([*header(requests, source, options), *rows, ""])
    print(text)
    print(f"{time.monotonic() - began_s:.0f} s")
    if options.out:
        options.out.write_text(text, encoding="utf-8")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("canary", __doc__)
    add_trace_options(parser)
    parser.add_argument("--canaries", type=int, default=100, help="between equal drafts; a quarter for the other rows")
    parser.add_argument("--concurrency", type=int, default=8, help="requests each arm serves at a time")
    parser.add_argument("--window", type=int, default=4, help="rounds of a request reported together")
    parser.add_argument("--history", type=int, default=200, help="live requests known before the canary begins")
    parser.add_argument("--max-requests", type=int, default=2000, help="of a canary, until it is decided by default")
    return parser.parse_args()


def load(path: Path | None) -> tuple[list[Rounds], str]:
    """Accepted drafts per round of every request, and where they come from."""
    if path is None:
        return generated(np.random.default_rng(0)), "generated: no recorded traces found"
    requests: dict[str, Rounds] = {}
    for trace in read_traces(path):
        requests.setdefault(trace.request_id, []).extend(trace.rounds.accepted.tolist())
    card = read_card(path)
    return [rounds for rounds in requests.values() if rounds], f"recorded: {card['setting']}, {card['machine']}"


def generated(rng: np.random.Generator) -> list[Rounds]:
    """Requests of unequal difficulty: each draft is accepted with a probability drawn once per request."""
    requests = []
    for ease in rng.beta(2.0, 2.5, GENERATED_REQUESTS):
        rounds: Rounds = []
        while sum(rounds) + len(rounds) < GENERATED_TOKENS:
            rounds.append(int(min(rng.geometric(1.0 - ease) - 1, MAX_STEPS)))
        requests.append(rounds)
    return requests


def questions(requests: Sequence[Rounds], canaries: int) -> list[Question]:
    """The rows: equal, better, worse and dead drafts."""
    few, hard = max(canaries // 4, 1), hardest(requests, HARD_LENGTH)
    kept = [Question("equal drafts (A/A)", requests, same, canaries)]
    kept += [Question(f"accept length +{g:.0%}", requests, better(requests, g), few) for g in (0.05, 0.1)]
    left = {g: 1.0 - g * accept_length(requests) / (accept_length(requests) - 1.0) for g in (0.05, 0.1)}
    kept += [Question(f"accept length -{g:.0%}", requests, thinned(requests, left[g]), few) for g in left]
    part = {"half": 0.5, "a fifth": 0.2}
    kept += [Question(f"{name} of the accepted drafts", requests, thinned(requests, part[name]), few) for name in part]
    dead = [("dead draft", requests), (f"dead draft, live {accept_length(hard):.2f}", hard)]
    return kept + [Question(name, drawn, lambda _, rng: int(rng.random() < DEAD_SHARE), few) for name, drawn in dead]


def accept_length(requests: Sequence[Rounds]) -> float:
    """Pooled, bonus token included."""
    return Tally(sum(map(sum, requests)), sum(map(len, requests))).accept_length


def hardest(requests: Sequence[Rounds], at_most: float) -> list[Rounds]:
    """The hardest requests, as many as keep their pooled accept length at or below `at_most`; at least ten."""
    ordered = sorted(requests, key=lambda rounds: sum(rounds) / len(rounds))
    counts = [n for n in range(10, len(ordered) + 1) if accept_length(ordered[:n]) <= at_most]
    return ordered[: max(counts, default=10)]


def same(accepted: int, rng: np.random.Generator) -> int:
    """The draft, unchanged."""
    del rng
    return accepted


def better(requests: Sequence[Rounds], gain: float) -> Change:
    """Accept rejected drafts with the probability that raises the accept length by `gain`, as a share."""
    steps, length = max(map(max, requests)), accept_length(requests)
    chance = gain * length / (steps - (length - 1.0))
    return lambda accepted, rng: accepted + int(rng.binomial(steps - accepted, chance))


def thinned(requests: Sequence[Rounds], share: float) -> Change:
    """Keep each draft with one probability, chosen so that `share` of the accepted drafts remains."""
    counts = np.bincount(np.concatenate([np.array(rounds) for rounds in requests]))
    lengths = np.arange(len(counts))
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        left = sum(count * (middle ** np.arange(1, n + 1)).sum() for n, count in zip(lengths, counts, strict=True))
        low, high = (middle, high) if left < share * (counts * lengths).sum() else (low, middle)
    return lambda accepted, rng: min(accepted, int(rng.geometric(1.0 - low)) - 1)


def served(rounds: Rounds, change: Change, rng: np.random.Generator) -> Rounds:
    """As many tokens served by the changed draft: in more rounds where fewer drafts are accepted."""
    tokens = sum(rounds) + len(rounds)
    out: Rounds = []
    while tokens > 0:
        source = rounds[len(out)] if len(out) < len(rounds) else rounds[int(rng.integers(len(rounds)))]
        out.append(change(source, rng))
        tokens -= out[-1] + 1
    return out


def windows(question: Question, arm: Arm, options: argparse.Namespace, rng: np.random.Generator) -> Iterator[Window]:
    """What one arm reports: each slot serves one round per tick, and starts the next request when one ends."""
    change = question.change if arm is Arm.CANARY else same
    ticks = [0] * options.concurrency
    for number in range(options.max_requests + options.concurrency):
        slot = min(range(options.concurrency), key=ticks.__getitem__)
        drawn = question.requests[int(rng.integers(len(question.requests)))]
        rounds = served(drawn, change, rng)
        for part, ended in parts(rounds, options.window):
            ticks[slot] += round(part.rounds)
            yield Window(ticks[slot], arm, f"{arm}-{number}", part, ended)


def parts(rounds: Rounds, window: int) -> Iterator[tuple[Tally, bool]]:
    """The rounds of one request as they are reported, and whether they are its last."""
    for begin in range(0, len(rounds), window):
        part = rounds[begin : begin + window]
        yield Tally(sum(part), len(part)), begin + window >= len(rounds)


def simulate(question: Question, options: argparse.Namespace, rng: np.random.Generator) -> Outcome:
    """One canary, judged after every tick until there is a verdict."""
    test = CanaryTest(CanaryRules(max_requests=options.max_requests))
    for number in range(options.history):
        rounds = question.requests[int(rng.integers(len(question.requests)))]
        for served_now, ended in parts(rounds, options.window):
            test.observe(Arm.LIVE, f"before-{number}", served_now, ended=ended, is_history=True)
    reported = sorted(
        [w for arm in Arm for w in windows(question, arm, options, rng)], key=lambda w: (w.tick, w.request_id)
    )
    for window, following in zip(reported, [*reported[1:], None], strict=True):
        test.observe(window.arm, window.request_id, window.served, ended=window.ended)
        if following is None or following.tick > window.tick:
            verdict = test.verdict()
            if verdict.decision is not CanaryDecision.WAIT:
                break
    return Outcome(verdict, window.tick * options.concurrency)


def line(question: Question, options: argparse.Namespace) -> str:
    """One row of the table."""
    rng = np.random.default_rng(0)
    ends = [simulate(question, options, rng) for _ in range(question.canaries)]
    verdicts = [(end.verdict.decision, end.verdict.basis is Basis.LIMIT) for end in ends]
    shares = {key: f"{verdicts.count(key) / len(ends):.1%}" for key in product(CanaryDecision, (False, True))}
    harm = share([end.verdict.basis is Basis.HARM for end in ends], len(ends))
    against, for_it = shares[CanaryDecision.ROLL_BACK, False], shares[CanaryDecision.PROMOTE, False]
    ended = f"{shares[CanaryDecision.PROMOTE, True]} / {shares[CanaryDecision.ROLL_BACK, True]}"
    rounds = [end.canary_rounds for end in ends]
    within = share([count <= 200 for count in rounds], len(ends))
    spread = " / ".join(f"{value:.0f}" for value in np.quantile(rounds, (0.5, 0.9, 1.0)))
    return f"| {question.name} | {len(ends)} | {against} ({harm}) | {for_it} | {ended} | {spread} | {within} |"


def share(flags: Sequence[bool], of: int) -> str:
    """The true share of `of` cases, in percent."""
    return f"{sum(flags) / of:.1%}"


def header(requests: Sequence[Rounds], source: str, options: argparse.Namespace) -> list[str]:
    """The lines above the rows: how the table was made, and its columns."""
    ratios = np.array([sum(rounds) / len(rounds) for rounds in requests])
    setting = (
        f"{source}; {len(requests)} requests, accept length {accept_length(requests):.3f}, standard deviation between "
        f"requests {ratios.std():.2f}; concurrency {options.concurrency}, {options.window} rounds a report, "
        f"{options.history} live requests before; {CanaryRules(max_requests=options.max_requests)}; seed 0; "
        f"simulated on {machine()}"
    )
    columns = (
        "| canary | runs | rolled back on evidence (by the harm test) | promoted on evidence "
        "| undecided at the limit: promoted / rolled back | canary rounds until the verdict: median / 90 % / maximum "
        "| within 200 rounds |"
    )
    return [setting, "", columns, "|---|---|---|---|---|---|---|"]


if __name__ == "__main__":
    main()
