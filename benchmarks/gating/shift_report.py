"""shift.md: one table per question."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...buffer.version import VersionState
from ...policies.learn_schedule import LearnRules
from ...policies.line_delivery import DeliveryRules
from ...policies.prequential import PrequentialRules
from ..learning.figures import Mean, requests_to_reach
from .canaried import GROUNDS, SERVED_CHUNKS, Trial, tried
from .guarded import dead_before, dead_version, guarded
from .matrix import Matrix
from .outcome import delivered
from .prequential_rules import TrustedLine
from .recovery import Recovery
from .report import table
from .rested import rested
from .results import RECOVERED
from .streams import CHUNK_REQUESTS, CHUNKS, NEW, plans
from .ways import TODAY

#: Gains per request that a line must have at least, tried on every stream.
FLOORS = (0.0, 0.0001, 0.001, 0.003, 0.01)
#: Rounds without a better draft that begin a rest: the product's, and fewer.
FLAT_ROUNDS = (LearnRules().flat_rounds, 4)


#: What may be asked for, with the heading of each.
PARTS = {
    "ways": "Ways to train once traffic has moved",
    "floors": "The smallest gain that a line must have",
    "rests": "Resting",
    "alarms": "Alarms",
    "canaries": "Canaries that are as good as the live version, and dead ones",
}


def markdown(
    card: Mapping[str, Any],
    matrices: Sequence[Matrix],
    recoveries: Sequence[Recovery],
    canaries: int,
    parts: Sequence[str] = tuple(PARTS),
) -> str:
    """The tables of `parts`."""
    seeds = ", ".join(map(str, sorted({int(matrix.card["seed"]) for matrix in matrices})))
    made = f"`python -m paceline.benchmarks.shift {card['command']}`, on {card['machine']}; seeds {seeds}.\n"
    tables: dict[str, Callable[[], str]] = {
        "ways": lambda: _ways(recoveries), "floors": lambda: _floors(matrices), "rests": lambda: _rests(matrices),
        "alarms": lambda: _alarms(matrices), "canaries": lambda: _canaries(matrices, canaries),
    }  # fmt: skip
    return "\n".join([made, *(text for part in parts for text in (f"## {PARTS[part]}\n", tables[part]()))])


def shift_of(stream: str) -> int | None:
    """The first chunk of new traffic."""
    return next(plan.shift_at for plan in plans(CHUNKS) if plan.name == stream)


def _streams(matrices: Sequence[Matrix]) -> dict[str, list[Matrix]]:
    names = dict.fromkeys(matrix.card["stream"] for matrix in matrices)
    return {name: [matrix for matrix in matrices if matrix.card["stream"] == name] for name in names}


def _ways(recoveries: Sequence[Recovery]) -> str:
    todays = {(found.stream, found.seed): found for found in recoveries if found.way == TODAY}
    groups: dict[tuple[str, str], list[Recovery]] = {}
    for found in recoveries:
        groups.setdefault((found.stream, found.way), []).append(found)
    columns = (
        "stream", "way", "seeds", "requests until 90 % of today's last level", "against today's",
        "optimiser steps until then", "training seconds until then",
        "accepted after the shift, % of today's", "accepted in the whole stream, % of today's",
    )  # fmt: skip
    lines = [_way([(one, todays[stream, one.seed]) for one in found]) for (stream, _), found in groups.items()]
    return table(columns, lines)


Pairs = Sequence[tuple[Recovery, Recovery]]


def _way(pairs: Pairs) -> list[str]:
    """One row: a way of training beside today's of the same seeds."""
    first, shift = pairs[0][0], shift_of(pairs[0][0].stream)
    until = [(reached(one, today), reached(today, today)) for one, today in pairs]
    found = [(one, requests) for (one, _), (requests, _) in zip(pairs, until, strict=True) if requests is not None]
    gains = [ours - theirs for ours, theirs in until if ours is not None and theirs is not None]
    return [
        first.stream, first.way, str(len(pairs)),
        f"{Mean.of([requests for _, requests in found]).text(0)} ({len(found)} of {len(pairs)})",
        Mean.of(gains).text(0),
        Mean.of([spent(one.steps, one, requests) for one, requests in found]).text(0),
        Mean.of([spent(one.seconds, one, requests) for one, requests in found]).text(0),
        _percent(pairs, shift or 0).text(1), _percent(pairs, 0).text(1),
    ]  # fmt: skip


def _percent(pairs: Pairs, begin: int) -> Mean:
    return Mean.of([100.0 * sum(one.accepted[begin:]) / sum(today.accepted[begin:]) for one, today in pairs])


def reached(one: Recovery, today: Recovery) -> float | None:
    """Requests after the shift until RECOVERED of the level that today's way ends at; None: never, or no shift."""
    shift = shift_of(one.stream)
    if shift is None:
        return None
    level = RECOVERED * sum(today.accepted[-2:]) / sum(today.rounds[-2:])
    values = [a / r for a, r in zip(one.accepted[shift:], one.rounds[shift:], strict=True)]
    return requests_to_reach([CHUNK_REQUESTS * (i + 1) for i in range(len(values))], values, level)


def spent(figures: Sequence[float], one: Recovery, requests: float) -> float:
    """Sum of a figure over the rounds from the shift to the last one before the chunk in which the level is reached."""
    shift = shift_of(one.stream) or 0
    return sum(figures[shift : shift + int(np.ceil(requests / CHUNK_REQUESTS)) - 1])


def _floors(matrices: Sequence[Matrix]) -> str:
    streams = _streams(matrices)
    found = {(floor, id(m)): delivered(m, _rule(floor)) for floor in FLOORS for m in matrices}

    def cell(floor: float, own: Sequence[Matrix]) -> str:
        share = [found[floor, id(m)].total.accepted / found[0.0, id(m)].total.accepted for m in own]
        swaps = np.mean([found[floor, id(m)].swaps for m in own])
        return f"{Mean.of([100.0 * one for one in share]).text(2)}; {swaps:.1f}"

    columns = ("least gain: accepted in % of none at all; swaps a stream", *streams)
    return table(columns, ([f"{floor:.2%}", *(cell(floor, own) for own in streams.values())] for floor in FLOORS))


def _rule(floor: float) -> TrustedLine:
    return TrustedLine(DeliveryRules(PrequentialRules(least_gain=floor)))


def _rests(matrices: Sequence[Matrix]) -> str:
    columns = ("stream", "rounds without a better draft", "seeds", "a rest began after chunk", "woke in chunk",
               "accepted while resting, % of a line that never rests")  # fmt: skip
    rows = [_rest(name, own, flat) for flat in FLAT_ROUNDS for name, own in _streams(matrices).items()]
    return table(columns, rows)


def _rest(stream: str, matrices: Sequence[Matrix], flat: int) -> list[str]:
    found = [rested(matrix, LearnRules(flat_rounds=flat)) for matrix in matrices]
    resting = [one for one in found if one.forgone.rounds]
    share = [100.0 * one.served.accepted / one.forgone.accepted for one in resting]
    return [stream, str(flat), str(len(found)), _each(one.began for one in found), _each(one.woke for one in resting),
            Mean.of(share).text(1)]  # fmt: skip


def _each(values: Iterable[int | None]) -> str:
    return ", ".join("–" if value is None else str(value) for value in values) or "–"  # noqa: RUF001 - a dash


def _alarms(matrices: Sequence[Matrix]) -> str:
    columns = ("stream", "what the line that never saw c accepts of it", "seeds", "versions rolled back, by seed",
               "lowest accept length of 200 rounds", "accepted, % of no alarms")  # fmt: skip
    rows = []
    for stream, own in _streams(matrices).items():
        rows.append(_alarm(stream, "as recorded", own))
        if any(np.any(matrix.domain_N == NEW) for matrix in own):
            rows.append(_alarm(stream, "nothing", [harshest(matrix) for matrix in own]))
    return table(columns, rows)


def harshest(matrix: Matrix) -> Matrix:
    """The same line as if it had had nothing of the new domain accepted before it learnt some."""
    first = int(matrix.block_N[matrix.domain_N == NEW].min())
    return dead_before(matrix, NEW, first)


def _alarm(stream: str, what: str, matrices: Sequence[Matrix]) -> list[str]:
    found = [(guarded(matrix), guarded(matrix, is_on=False)) for matrix in matrices]
    share = Mean.of([100.0 * on.accepted / off.accepted for on, off in found])
    counts = ", ".join(str(len(on.rolled_back)) for on, _ in found)
    return [stream, what, str(len(found)), counts, f"{min(off.lowest for _, off in found):.2f}", share.text(1)]


#: Which canary is tried, from which chunk to which, and what its replica serves by.
Case = tuple[str, int, int, Callable[[Matrix], Matrix | None]]


def _cases(stream: str) -> list[Case]:
    shift = shift_of(stream)
    if shift is None:
        return []
    begins = [shift + after for after in (-1, 0, 1, 2) if shift + after >= SERVED_CHUNKS]
    dead = (shift - SERVED_CHUNKS) * 2
    return [
        *([("equal, before the shift", SERVED_CHUNKS, shift, _as_live)] if shift > SERVED_CHUNKS else []),
        *((f"equal, {begin - shift:+d} rounds from the shift", begin, CHUNKS, _as_live) for begin in begins),
        ("dead, at the shift", shift, CHUNKS, lambda matrix: dead_version(matrix, dead)),
    ]


def _as_live(_: Matrix) -> None:
    return None


def _canaries(matrices: Sequence[Matrix], runs: int) -> str:
    grounds = [f"by {ground}" for ground in GROUNDS]
    columns = ("stream", "canary", "runs", "rolled back", *grounds, "rounds until then: median / most", "promoted")
    rows = [_canary(stream, case, own, runs) for stream, own in _streams(matrices).items() for case in _cases(stream)]
    return table(columns, rows if runs else [])


def _canary(stream: str, case: Case, matrices: Sequence[Matrix], runs: int) -> list[str]:
    name, begin, end, canary = case
    trials = [
        tried(matrix, begin, end, np.random.default_rng([int(matrix.card["seed"]), run]), canary(matrix))
        for matrix in matrices
        for run in range(runs)
    ]
    out = [trial for trial in trials if trial.state is VersionState.ROLLED_BACK]
    counts = Counter(trial.ground for trial in out)
    rounds = [trial.rounds for trial in out]
    spread = f"{np.median(rounds):.0f} / {max(rounds)}" if rounds else "–"  # noqa: RUF001 - a dash
    return [stream, name, str(len(trials)), _share(len(out), trials), *(_share(counts[g], trials) for g in GROUNDS),
            spread, _share(sum(t.state is VersionState.LIVE for t in trials), trials)]  # fmt: skip


def _share(count: int, trials: Sequence[Trial]) -> str:
    return f"{100.0 * count / len(trials):.0f} %"
