"""Tokens per second of captured requests against requests that opted out, on one server, in alternating pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ...dashboards.tables import as_counts
from ...rig.prompts import Prompt
from ...rig.ratio import Ratio, Spread, ratio
from ..measure.answers import answer_all, asks, flush_cache
from ..measure.measured_server import MeasuredServer
from ..measure.paired import in_rounds


@dataclass(frozen=True, slots=True)
class OverheadPlan:
    """The runs: one at batch b sends b * waves requests, b at a time."""

    batches: tuple[int, ...]
    waves: int
    max_tokens: int
    pairs: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Overhead:
    """One batch size; ratios are captured over opted out."""

    batch: int
    captured: Spread  # tokens per second
    opted_out: Spread
    ratio: Ratio
    accept_length: float
    dropped: Mapping[str, int]  # traces dropped during these runs, by reason


def measure_overhead(server: MeasuredServer, prompts: Sequence[Prompt], plan: OverheadPlan) -> list[Overhead]:
    """Every batch size in turn.

    Before each run the server delivers its traces and its cache is flushed: every run prefills the same tokens and does
    no work of the run before. What the courier compresses after a run's last token is not measured.
    """
    return [_measure(server, prompts, plan, batch) for batch in plan.batches]


def _measure(server: MeasuredServer, prompts: Sequence[Prompt], plan: OverheadPlan, batch: int) -> Overhead:
    def rate(*, capture: bool) -> float:
        server.drained()
        flush_cache(server.url)
        asked = asks(prompts[: batch * plan.waves], f"overhead-{batch}", plan.max_tokens, capture=capture)
        answers = answer_all(server.url, asked, batch)
        lengths.append(answers.tally.accept_length)
        return answers.tokens_per_second

    lengths: list[float] = []
    before = as_counts(server.drained(), "dropped")
    ways = {"captured": partial(rate, capture=True), "opted out": partial(rate, capture=False)}
    for warm_up in ways.values():
        warm_up()
    captured, opted_out = in_rounds(ways, plan.pairs, plan.seed).values()
    after = as_counts(server.drained(), "dropped")
    dropped = {reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)}
    rates = Spread.of(captured), Spread.of(opted_out), ratio(captured, opted_out)
    return Overhead(batch, *rates, sum(lengths) / len(lengths), dropped)
