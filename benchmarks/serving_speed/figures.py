"""What the blocks of runs say: ratios of tokens per second, times per token, and when learning has paid for itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...policies.acceptance import Tally
from ...rig.ratio import Ratio, ratio
from ...rig.speed.turn import different
from .arms import PACELINE, PLAIN, STATIC
from .recorded import Block, Run

BEFORE = "before the shift"
AFTER = "after the shift"
RECOVERED = "after recovery"
WHOLE = "whole stream"
PHASES = (BEFORE, AFTER, RECOVERED, WHOLE)


def in_phase(run: Run, phase: str) -> list[Block]:
    """Blocks of a phase. After recovery: of the last half of each later domain's chunks, rounded up."""
    first = run.conditions.first_domain
    if phase == RECOVERED:
        chunks = recovered_chunks(run)
        return [block for block in run.blocks if block.chunk in chunks]
    wanted = {BEFORE: (True,), AFTER: (False,), WHOLE: (True, False)}[phase]
    return [block for block in run.blocks if (block.domain == first) in wanted]


def recovered_chunks(run: Run) -> set[int]:
    """Numbers of the chunks that count as after recovery."""
    by_domain: dict[str, list[int]] = {}
    for number, domain in sorted({(block.chunk, block.domain) for block in run.blocks}):
        if domain != run.conditions.first_domain:
            by_domain.setdefault(domain, []).append(number)
    return {n for numbers in by_domain.values() for n in numbers[len(numbers) // 2 :]}


def speed(runs: Sequence[Run], arm: str, over: str, *, concurrency: int, phase: str) -> Ratio | None:
    """Tokens per second of one arm over another's, block by block; None without a block that both answered."""
    blocks = [b for run in runs for b in in_phase(run, phase) if b.concurrency == concurrency and has(b, arm, over)]
    if not blocks:
        return None
    first, second = ([b.turn(name).tokens_per_second for b in blocks] for name in (arm, over))
    return ratio(first, second)


def has(block: Block, *arms: str) -> bool:
    """Whether all of these arms answered a block."""
    return {*arms} <= {turn.arm for turn in block.turns}


def token_ms(runs: Sequence[Run], arm: str, concurrency: int, phase: str) -> tuple[float, float] | None:
    """Median and 99th percentile of the time per token, milliseconds; None without a token."""
    turns = [
        block.turn(arm)
        for run in runs
        for block in in_phase(run, phase)
        if block.concurrency == concurrency and has(block, arm)
    ]
    waits = [ms for turn in turns for ms in turn.token_ms()]
    if not waits:
        return None
    p50, p99 = np.percentile(waits, (50, 99))
    return float(p50), float(p99)


def accepted(runs: Sequence[Run], arm: str, phase: str) -> Tally:
    """Drafts accepted and rounds of an arm in a phase, all concurrencies together."""
    turns = [block.turn(arm) for run in runs for block in in_phase(run, phase) if has(block, arm)]
    return sum((turn.tally for turn in turns), Tally())


def differing(runs: Sequence[Run]) -> tuple[list[str], int]:
    """Answers that are not those of the server without a draft, and how many were compared with it."""
    found = [name for run in runs for block in run.blocks for name in different(block.turns, PLAIN)]
    return found, sum(len(turn.answers) for run in runs for b in run.blocks for turn in b.turns if turn.arm != PLAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """When the time that drafts saved first exceeded what the learner had spent, for good."""

    requests: int | None  # of the stream, from its first one; None: not within it
    seconds: float | None  # of serving these, without the learner's
    saved_s: float  # by the end of the stream
    spent_s: float
    #: Requests at which it would, if the stream went on as in its last part; None: never, or reached already.
    expected_requests: float | None


def has_holds(run: Run) -> bool:
    """Whether the learner had time of its own, so that its seconds can be set against those saved."""
    return any(hold.learner_seconds is not None for hold in run.holds)


def break_even(run: Run, concurrency: int) -> BreakEven:
    """As if every request of the stream had been asked at `concurrency`, at the speed of its chunk's block.

    Saved is the time that the arm "static" would have taken for a chunk less what "paceline" took; spent are the
    learner's busy seconds, whatever phase it was in, up to the hold after the chunk. It counts from the first request
    of the stream, before any shift. Chunks that nothing was held after are left out.
    """
    spent_at = {hold.chunk: hold.learner_seconds for hold in run.holds if hold.learner_seconds is not None}
    sizes = {n: sum(len(b.turns[0].answers) for b in run.blocks if b.chunk == n) for n in spent_at}
    chunks = [block for block in run.at(concurrency) if block.chunk in spent_at]
    requests_N = np.array([sizes[block.chunk] for block in chunks])
    took_N, static_N = (
        np.array([requests * _seconds_per_request(b, arm) for requests, b in zip(requests_N, chunks, strict=True)])
        for arm in (PACELINE, STATIC)
    )
    spent_N = np.array([spent_at[block.chunk] for block in chunks])
    gain_N = (static_N - took_N).cumsum() - spent_N.cumsum()
    short = np.flatnonzero(gain_N < 0.0)
    at = int(short[-1]) + 1 if len(short) else 0
    is_reached = at < len(chunks)
    return BreakEven(
        requests=int(requests_N[: at + 1].sum()) if is_reached else None,
        seconds=float(took_N[: at + 1].sum()) if is_reached else None,
        saved_s=float((static_N - took_N).sum()),
        spent_s=float(spent_N.sum()),
        expected_requests=None if is_reached else _extrapolated(run, chunks, requests_N, static_N - took_N - spent_N),
    )


def _seconds_per_request(block: Block, arm: str) -> float:
    turn = block.turn(arm)
    return turn.seconds / len(turn.answers)


def _extrapolated(run: Run, chunks: Sequence[Block], requests_N: np.ndarray, gain_N: np.ndarray) -> float | None:
    """Requests until the sum of `gain_N` is zero, going on at the mean of the recovered chunks."""
    recovered = recovered_chunks(run)
    last_N = np.array([block.chunk in recovered for block in chunks], bool)
    pace = gain_N[last_N].sum() / requests_N[last_N].sum() if last_N.any() else 0.0
    return float(requests_N.sum() - gain_N.sum() / pace) if pace > 0.0 else None
