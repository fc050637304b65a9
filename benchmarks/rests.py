"""How soon does a resting learner notice other traffic, and how often does it wake for nothing?

Requests are drawn with replacement, whole, from a file of recorded traces. A schedule rests on the domains that its
draft knows (py, prose and html, equally often) and is then shown other mixtures, a batch of 40 requests a minute;
nothing is learned. The recorded draft has never been trained on c.

    python -m paceline.benchmarks.rests [--traces FILE] [--runs 200] [--out rests.md]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..policies.acceptance import Tally, served_tally
from ..policies.learn_schedule import USUAL_REQUESTS, LearnChoice, LearnRules, LearnSchedule
from ..rig.machine import machine
from ..rig.trace_file import read_card, read_traces
from .learning.recorded import add_trace_options, trace_file
from .measure.command_line import benchmark_parser

BATCH = 40
KNOWN = {"py": 1.0, "prose": 1.0, "html": 1.0}

Domains = Mapping[str, Sequence[Tally]]


@dataclass(frozen=True, slots=True)
class Traffic:
    """One row: the traffic while the learner rests."""

    name: str
    mixture: Mapping[str, float]  # domain -> weight
    requests: int  # shown at most


ROWS = (
    Traffic("the same", KNOWN, 4000),
    Traffic("c, never seen", {"c": 1.0}, 2000),
    Traffic("half of it c", {**KNOWN, "c": 3.0}, 2000),
    Traffic("a quarter of it c", {**KNOWN, "c": 1.0}, 2000),
    Traffic("a tenth of it c", {**KNOWN, "c": 1 / 3}, 2000),
    Traffic("prose alone, known and harder", {"prose": 1.0}, 2000),
    Traffic("html alone, known and easier", {"html": 1.0}, 2000),
)


def main() -> None:
    """Simulate and print."""
    parser = benchmark_parser("rests", __doc__)
    add_trace_options(parser)
    parser.add_argument("--runs", type=int, default=200, help="per row (200)")
    options = parser.parse_args()
    path = trace_file(options)
    if path is None:
        parser.error(
            "no recorded traces found: record them with python -m paceline.benchmarks.learning.record, "
            "or name a file with --traces"
        )
    text = "\n".join(table(path, options.runs))
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


def table(path: Path, runs: int) -> list[str]:
    """The table, below a line that says what it was made from."""
    domains = load(path)
    levels = ", ".join(f"{name} {np.mean([t.accepted / t.rounds for t in of]):.2f}" for name, of in domains.items())
    card = read_card(path)
    setting = (
        f"recorded: {card['setting']}, {card['machine']}; accepted per round by domain: {levels}; {LearnRules()}; "
        f"{runs} runs a row, seed 0; simulated on {machine()}"
    )
    return [
        setting,
        "",
        "| traffic while the learner rests | woke | after requests: median / 90 % | requests shown |",
        "|---|---|---|---|",
        *(line(row, domains, runs) for row in ROWS),
    ]


def load(path: Path) -> Domains:
    """Domain -> what was served of each of its requests."""
    requests: dict[str, Tally] = {}
    for trace in read_traces(path):
        requests[trace.request_id] = requests.get(trace.request_id, Tally()) + served_tally(trace)
    domains: dict[str, list[Tally]] = {}
    for name, tally in requests.items():
        if tally.rounds:
            domains.setdefault(name.split("-")[0], []).append(tally)
    return domains


def line(row: Traffic, domains: Domains, runs: int) -> str:
    """One row of the table."""
    rng = np.random.default_rng(0)
    woke = [count for count in (until_awake(row, domains, rng) for _ in range(runs)) if count is not None]
    spread = " / ".join(f"{value:.0f}" for value in np.quantile(woke, (0.5, 0.9))) if woke else "-"
    return f"| {row.name} | {len(woke) / runs:.1%} | {spread} | {row.requests} |"


def until_awake(row: Traffic, domains: Domains, rng: np.random.Generator) -> int | None:
    """Requests until the rest ends; None when it does not."""
    schedule, rules = LearnSchedule(LearnRules()), LearnRules()
    schedule.observe(drawn(KNOWN, domains, USUAL_REQUESTS, rng))
    for _ in range(rules.flat_rounds):
        schedule.record_learning(0.0, is_better=False, is_warm=True)
    for number in range(1, row.requests // BATCH + 1):
        schedule.observe(drawn(row.mixture, domains, BATCH, rng))
        if schedule.decide(60.0 * number).choice is LearnChoice.LEARN:
            return BATCH * number
    return None


def drawn(mixture: Mapping[str, float], domains: Domains, count: int, rng: np.random.Generator) -> list[Tally]:
    """`count` requests, each of a domain drawn by its weight."""
    weights = np.array(list(mixture.values()))
    names = rng.choice(list(mixture), count, p=weights / weights.sum())
    return [domains[name][int(rng.integers(len(domains[name])))] for name in names]


if __name__ == "__main__":
    main()
