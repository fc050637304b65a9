"""Trains a line in another way from the round on that meets new traffic, and keeps what it would have served.

The newest draft serves every chunk, as without a gate, so that ways of training are compared and not gates.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from ...buffer.trace import DraftTrace
from ...learner.claim.intake import is_held_out
from ...learner.judging.replay import replay_traces
from ...learner.training.plan import TrainingPlan
from ...learner.training.trainer import DraftTrainer
from ...policies.acceptance import Tally, replayed_tally
from ...policies.learn_schedule import LearnChoice, LearnRules, LearnSchedule
from ...rig.progress import Report
from ..learning.lab import Lab
from .line import HOLDOUT_SHARE, REPLAY_TRACES, Job, blocks, initial_draft
from .matrix import Matrix
from .pool import SETTING
from .streams import StreamedRequest
from .ways import SMALL_ROUNDS, TODAY, USUAL_REQUESTS, ShiftWatch, Way

#: Between two rounds, for the schedule of a learner at rest: its cool-down is over.
ROUND_S = 60.0


class Recovery(msgspec.Struct, frozen=True):
    """One way of training on one stream: what the newest draft had accepted of each chunk, and what its round took."""

    way: str
    stream: str
    seed: int
    moved_at: int | None  # the chunk whose round saw the shift first
    accepted: list[int]
    rounds: list[int]
    steps: list[int]
    seconds: list[float]


def todays(matrix: Matrix) -> Recovery:
    """The line as the product trains it."""
    tallies = [matrix.served(chunk * matrix.blocks_per_round, chunk) for chunk in range(matrix.chunks)]
    return _as_trained(matrix, TODAY, tallies)


def of_small_rounds(matrix: Matrix) -> Recovery:
    """The same line with every block a round: the second half of a chunk is served by the draft that learnt the first.

    Such a round would train in two blocks of its own, so this is what serving sooner is worth, and no more.
    """
    blocks_of = [
        [int(block) for block in sorted(set(matrix.block_N[matrix.chunk_of == c]))] for c in range(matrix.chunks)
    ]
    return _as_trained(
        matrix, SMALL_ROUNDS, [_summed(_of_block(matrix, block) for block in found) for found in blocks_of]
    )


def _of_block(matrix: Matrix, block: int) -> Tally:
    return _summed(matrix.tally(block, int(request)) for request in (matrix.block_N == block).nonzero()[0])


def _summed(tallies: Iterable[Tally]) -> Tally:
    return sum(tallies, Tally())


def _as_trained(matrix: Matrix, way: str, tallies: Sequence[Tally]) -> Recovery:
    per_round, fits = matrix.blocks_per_round, matrix.card["fits"]
    by_chunk = [fits[begin : begin + per_round] for begin in range(0, len(fits), per_round)]
    return Recovery(
        way, matrix.card["stream"], matrix.card["seed"], first_moved(matrix),
        [int(tally.accepted) for tally in tallies], [int(tally.rounds) for tally in tallies],
        [sum(steps for steps, _ in found) for found in by_chunk],
        [sum(seconds for _, seconds in found) for found in by_chunk],
    )  # fmt: skip


def served_values(matrix: Matrix, version: int, chunk: int) -> list[float]:
    """Accepted per round of each request of a chunk, served by a version; requests without rounds left out."""
    tallies = [matrix.tally(version, int(request)) for request in (matrix.chunk_of == chunk).nonzero()[0]]
    return [tally.accepted / tally.rounds for tally in tallies if tally.rounds]


def first_moved(matrix: Matrix) -> int | None:
    """The first chunk whose round sees that traffic has moved, while the newest draft serves; None: no round does."""
    watch = ShiftWatch()
    for chunk in range(matrix.chunks):
        watch.observe(served_values(matrix, chunk * matrix.blocks_per_round, chunk))
        if watch.has_moved:
            return chunk
    return None


def trained(
    lab: Lab, job: Job, requests: Sequence[StreamedRequest], matrix: Matrix, way: Way, folder: Path, report: Report
) -> Recovery:
    """Train `way` from the round on that sees the shift; what was trained before it is kept in `folder`.

    About a minute on one thread. ValueError for a stream in which no round sees a shift.
    """
    found, begin = todays(matrix), first_moved(matrix)
    if begin is None:
        raise ValueError(f"{job.name}: got a stream without a shift that the learner sees, expected one")
    line = _Line(lab, job, requests, way)
    line.restore(matrix, begin, folder / f"{job.name}-before-{begin}.state")
    for chunk in range(begin, matrix.chunks):
        tally, steps, seconds = line.round(chunk, is_last=chunk == matrix.chunks - 1)
        found.accepted[chunk], found.rounds[chunk] = int(tally.accepted), int(tally.rounds)
        found.steps[chunk:], found.seconds[chunk:] = [steps], [seconds]
        report((chunk + 1) / matrix.chunks, f"chunk {chunk}: {tally.accept_length:.2f}")
    return msgspec.structs.replace(found, way=way.name)


class _Line:
    """A line in training with all that its next round depends on."""

    def __init__(self, lab: Lab, job: Job, requests: Sequence[StreamedRequest], way: Way) -> None:
        self._requests, self._way, self._seed = requests, way, job.seed
        self._block_N = blocks(requests, job.blocks_per_round)
        self._per_round = job.blocks_per_round
        self._trainer = DraftTrainer(initial_draft(lab, job), TrainingPlan(steps=SETTING.steps, seed=job.seed))
        self._replay: deque[tuple[int, DraftTrace]] = deque(maxlen=REPLAY_TRACES)  # with numbers of requests
        self._watch, self._schedule = ShiftWatch(), LearnSchedule(LearnRules())

    def restore(self, matrix: Matrix, begin: int, path: Path) -> None:
        """Train as the product does up to chunk `begin`, or read what was trained so before."""
        is_kept = path.exists()
        for chunk in range(begin):
            self._watch.observe(served_values(matrix, chunk * self._per_round, chunk))
            for block in self._blocks(chunk):
                if not is_kept:
                    self._trainer.fit([trace for _, trace in self._learned(block)], [t for _, t in self._replay])
                self._replay.extend(self._learned(block))
        if is_kept:
            self._trainer.load(path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._trainer.save(path)
        if self._way.is_at_rest:
            usual = self._watch.served[-USUAL_REQUESTS:]
            self._schedule.restore({"rest": {"began_at_s": 0.0, "usual": usual}})

    def round(self, chunk: int, *, is_last: bool) -> tuple[Tally, int, float]:
        """Serve a chunk with the newest draft, then learn it: what was accepted, optimiser steps and seconds."""
        numbers = (self._block_N // self._per_round == chunk).nonzero()[0].tolist()
        tallies = self._serve([self._requests[number].trace for number in numbers])
        self._watch.observe([tally.accepted / tally.rounds for tally in tallies if tally.rounds])
        self._schedule.observe(tallies)
        is_rested = self._schedule.decide(ROUND_S * (chunk + 1)).choice is LearnChoice.REST
        fits = [] if is_last else [self._fit(block, is_rested=is_rested) for block in self._blocks(chunk)]
        return _summed(tallies), sum(steps for steps, _ in fits), sum(seconds for _, seconds in fits)

    def _serve(self, traces: Sequence[DraftTrace]) -> list[Tally]:
        runs = replay_traces(self._trainer.draft, traces, SETTING.steps, only_verdicts=True)
        return [replayed_tally(trace, run) for trace, run in zip(traces, runs, strict=True)]

    def _fit(self, block: int, *, is_rested: bool) -> tuple[int, float]:
        has_moved, fresh = self._watch.has_moved, self._learned(block)
        steps, seconds = 0, 0.0
        if not is_rested:
            self._trainer.plan = self._way.plan(self._seed, has_moved=has_moved)
            self._trainer.recipe = self._way.recipe(has_moved=has_moved)
            replay = self._way.chosen(self._replay, self._watch.moved_at if has_moved else None)
            fit = self._trainer.fit([trace for _, trace in fresh], replay)
            steps, seconds = fit.steps, fit.seconds
        self._replay.extend(fresh)
        return steps, seconds

    def _blocks(self, chunk: int) -> range:
        return range(chunk * self._per_round, (chunk + 1) * self._per_round)

    def _learned(self, block: int) -> list[tuple[int, DraftTrace]]:
        found = [(int(number), self._requests[number].trace) for number in (self._block_N == block).nonzero()[0]]
        return [(number, trace) for number, trace in found if not is_held_out(trace.request_id, HOLDOUT_SHARE)]
