"""All rules on all matrices: the figures of every table, and the file that keeps them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..learning.figures import requests_to_reach
from .equal import dealt
from .matrix import Matrix
from .outcome import Outcome, delivered, oracle, worse_swaps
from .table import NO_GATE, RULES, NamedRule

ORACLE = "oracle"
#: Share of the level that no gate ends at, which counts as recovered.
RECOVERED = 0.9


@dataclass(frozen=True, slots=True)
class Figures:
    """One rule on one line."""

    rule: str
    stream: str
    seed: int
    accepted: float  # drafts, over the whole stream, of honest requests
    rounds: float
    swaps: int
    worse_swaps: int
    recovered_after: float | None  # requests after the shift; None: never, or no shift
    lengths: Sequence[float]  # accept length by chunk


@dataclass(frozen=True, slots=True)
class EqualFigures:
    """One rule on many runs between equal drafts."""

    rule: str
    runs: int
    promoted: int  # runs in which any draft went live
    swaps: int  # of all runs


def compared(matrix: Matrix, rules: Iterable[NamedRule], shift_at: int | None) -> list[Figures]:
    """Every rule, and the oracle, on one line."""
    stream, seed = str(matrix.card["stream"]), int(matrix.card["seed"])
    outcomes = {ORACLE: oracle(matrix)} | {rule.name: delivered(matrix, rule.make(seed)) for rule in rules}
    chunk_requests = int((matrix.chunk_of == 0).sum())
    level = RECOVERED * (float(np.mean(outcomes[NO_GATE].lengths[-2:])) - 1.0)
    return [
        Figures(
            name, stream, seed, outcome.total.accepted, outcome.total.rounds, outcome.swaps,
            worse_swaps(matrix, outcome), _recovered_after(outcome, shift_at, chunk_requests, level), outcome.lengths,
        )
        for name, outcome in outcomes.items()
    ]  # fmt: skip


def _recovered_after(outcome: Outcome, shift_at: int | None, chunk_requests: int, level: float) -> float | None:
    if shift_at is None:
        return None
    values = [length - 1.0 for length in outcome.lengths[shift_at:]]
    return requests_to_reach([chunk_requests * (i + 1) for i in range(len(values))], values, level)


def among_equals(matrices: Sequence[Matrix], rules: Iterable[NamedRule], runs: int) -> list[EqualFigures]:
    """Every rule on `runs` deals of each matrix of equal drafts; all rules see the same deals. [] without any."""
    found = {rule: [0, 0] for rule in rules}
    for matrix in matrices:
        for run in range(runs):
            deal = dealt(matrix, np.random.default_rng([int(matrix.card["seed"]), run]))
            for rule, counts in found.items():
                swaps = delivered(deal, rule.make(run)).swaps
                counts[0] += swaps > 0
                counts[1] += swaps
    total = runs * len(matrices)
    return [EqualFigures(rule.name, total, *counts) for rule, counts in found.items()] if total else []


def write_results(path: Path, card: Mapping[str, Any], lines: Sequence[Figures], equal: Sequence[EqualFigures]) -> None:
    """Replace `path`."""
    written = {**card, "rules": [rule.name for rule in RULES], "lines": lines, "equal": equal}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1) + b"\n")
