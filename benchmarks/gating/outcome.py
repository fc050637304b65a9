"""What a rule did with one line, and what was served because of it. Figures are of honest requests alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...policies.acceptance import Tally
from .matrix import Matrix
from .view import Rule, View


@dataclass(frozen=True, slots=True)
class Outcome:
    """One rule on one line. The first chunk is served by the draft that the line started from."""

    served: tuple[int, ...]  # version by chunk
    tallies: tuple[Tally, ...]  # by chunk

    @property
    def total(self) -> Tally:
        """Of the whole stream."""
        return sum(self.tallies, Tally())

    @property
    def swaps(self) -> int:
        """How often another version went live."""
        return sum(now != before for before, now in zip(self.served, self.served[1:], strict=False))

    @property
    def lengths(self) -> list[float]:
        """Accept length by chunk, bonus token included."""
        return [tally.accept_length for tally in self.tallies]


def delivered(matrix: Matrix, rule: Rule) -> Outcome:
    """Let a new rule decide after every chunk but the last, whose verdict nothing is served by."""
    served = [0]
    for chunk in range(matrix.chunks - 1):
        served.append(rule.decide(View(matrix, chunk, served[-1])))
    return outcome_of(matrix, served)


def oracle(matrix: Matrix) -> Outcome:
    """Every chunk is served by the candidate that does best on it, as nobody can know before."""
    served = [0]
    for chunk in range(1, matrix.chunks):
        candidates = range(0, chunk * matrix.blocks_per_round + 1, matrix.blocks_per_round)
        served.append(max(candidates, key=lambda version: matrix.served(version, chunk).accepted))
    return outcome_of(matrix, served)


def outcome_of(matrix: Matrix, served: Sequence[int]) -> Outcome:
    """What a sequence of versions, one per chunk, would have had accepted."""
    tallies = tuple(matrix.served(version, chunk) for chunk, version in enumerate(served))
    return Outcome(tuple(served), tallies)


def around(matrix: Matrix, chunks: Sequence[int]) -> tuple[Tally, Tally]:
    """What those chunks do to a draft: the chunk after each, served by the newest, and by the last one before them."""
    per_round, before = matrix.blocks_per_round, min(chunks) * matrix.blocks_per_round
    pairs = [(matrix.served((chunk + 1) * per_round, chunk + 1), matrix.served(before, chunk + 1)) for chunk in chunks]
    return sum((newest for newest, _ in pairs), Tally()), sum((old for _, old in pairs), Tally())


def worse_swaps(matrix: Matrix, outcome: Outcome) -> int:
    """Swaps to a version that accepts no more of what comes afterwards than the one it replaced."""
    worse = 0
    for chunk in range(1, matrix.chunks):
        before, now = outcome.served[chunk - 1 : chunk + 1]
        if now != before:
            rest = range(chunk, matrix.chunks)
            gained = sum(matrix.served(now, c).accepted - matrix.served(before, c).accepted for c in rest)
            worse += gained <= 0
    return worse
