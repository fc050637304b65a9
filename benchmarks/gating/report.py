"""results.md: one table per question."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...policies.acceptance import Tally
from ..learning.figures import Mean
from .matrix import Matrix
from .outcome import around
from .results import ORACLE, EqualFigures, Figures
from .streams import StreamPlan
from .table import NO_GATE, TODAY

Figure = Callable[[Figures], float]


def heading(card: Mapping[str, Any], plans: Sequence[StreamPlan], matrices: Sequence[Matrix]) -> str:
    """How the tables were made, and whether what should harm a draft does."""
    described = "".join(f"- {plan.name}: {plan.what}{_harm(plan, matrices)}\n" for plan in plans)
    copies = ", ".join(f"{mean:+.3f} (standard deviation {spread:.3f})" for mean, spread in card["equal_copies"])
    return (
        f"`python -m paceline.benchmarks.gate {card['command']}`, on {card['machine']}; seeds {_seeds(matrices)}.\n\n"
        f"{described}\nCopies of equal drafts differ in accept length by {copies}, before tallies are dealt out.\n"
    )


def _seeds(matrices: Sequence[Matrix]) -> str:
    return ", ".join(map(str, sorted({int(matrix.card["seed"]) for matrix in matrices})))


def _harm(plan: StreamPlan, matrices: Sequence[Matrix]) -> str:
    chunks = [chunk for chunk in (*plan.poisoned, *plan.ruined) if chunk + 1 < len(plan.shares)]
    own = [matrix for matrix in matrices if matrix.card["stream"] == plan.name]
    if not chunks or not own:
        return ""
    pairs = [around(matrix, chunks) for matrix in own]
    newest, before = (sum(tallies, Tally()).accept_length for tallies in zip(*pairs, strict=True))
    lengths = f"the newest draft has an accept length of {newest:.2f}, the last one before them {before:.2f}"
    return f"; these are chunks {', '.join(map(str, chunks))}, and after each of them {lengths}"


def markdown(lines: Sequence[Figures], equal: Sequence[EqualFigures]) -> str:
    """All tables."""
    streams = list(dict.fromkeys(line.stream for line in lines))
    parts = [
        "## Accepted drafts over the whole stream, in percent of no gate\n", _ratios(lines, streams, NO_GATE),
        "## The same, in percent of an oracle that sees the next chunk\n", _ratios(lines, streams, ORACLE),
        f"## The same, in percent of the {TODAY}\n", _ratios(lines, streams, TODAY),
        "## Requests after the shift until 90 % of the level that no gate ends at\n", _recoveries(lines),
        "## Swaps over the whole stream\n", _means(lines, streams, lambda line: line.swaps, 1),
        "## Of them to a draft that accepts no more afterwards\n",
        _means(lines, streams, lambda line: line.worse_swaps, 1),
        "## Equal drafts\n", _equals(equal),
        "## Accept length of the whole stream, bonus token included\n",
        _means(lines, streams, lambda line: 1.0 + line.accepted / line.rounds, 3),
    ]  # fmt: skip
    return "\n".join(parts)


def _ratios(lines: Sequence[Figures], streams: Sequence[str], over: str) -> str:
    accepted = {(line.rule, line.stream, line.seed): line.accepted for line in lines}

    def cell(rule: str, stream: str) -> str:
        ratios = [
            100.0 * count / accepted[over, stream, seed]
            for (r, s, seed), count in accepted.items()
            if (r, s) == (rule, stream)
        ]
        return Mean.of(ratios).text(1)

    rules = [rule for rule in _rules(lines) if rule != over]
    return table(("rule", *streams), ([rule, *(cell(rule, stream) for stream in streams)] for rule in rules))


def _means(lines: Sequence[Figures], streams: Sequence[str], figure: Figure, digits: int) -> str:
    def cell(rule: str, stream: str) -> str:
        return Mean.of([figure(line) for line in lines if (line.rule, line.stream) == (rule, stream)]).text(digits)

    return table(("rule", *streams), ([rule, *(cell(rule, s) for s in streams)] for rule in _rules(lines)))


def _recoveries(lines: Sequence[Figures]) -> str:
    streams = list(dict.fromkeys(line.stream for line in lines if line.recovered_after is not None))

    def cell(rule: str, stream: str) -> str:
        found = [line.recovered_after for line in lines if (line.rule, line.stream) == (rule, stream)]
        reached = [requests for requests in found if requests is not None]
        return f"{Mean.of(reached).text(0)} ({len(reached)} of {len(found)})"

    return table(("rule", *streams), ([rule, *(cell(rule, s) for s in streams)] for rule in _rules(lines)))


def _equals(equal: Sequence[EqualFigures]) -> str:
    rows = [
        [row.rule, str(row.runs), f"{100.0 * row.promoted / row.runs:.1f} %", f"{row.swaps / row.runs:.2f}"]
        for row in equal
    ]
    return table(("rule", "runs", "with any promotion", "promotions a run"), rows)


def _rules(lines: Sequence[Figures]) -> list[str]:
    return list(dict.fromkeys(line.rule for line in lines))


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    rows = [columns, ["---"] * len(columns), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
