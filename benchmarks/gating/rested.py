"""What resting does on a stream: the product's schedule and rule over a line that goes on learning beside them.

While the learner rests, what served when the rest began goes on serving, and what the line gains meanwhile is forgone:
at most, for a line that had rested would have learnt less.
"""

from dataclasses import dataclass

from ...policies.acceptance import Tally
from ...policies.learn_schedule import LearnChoice, LearnRules, LearnSchedule
from ...policies.line_delivery import DeliveryRules, Ground
from .matrix import Matrix
from .prequential_rules import TrustedLine
from .recovery import ROUND_S
from .view import View


@dataclass(frozen=True, slots=True)
class Rested:
    """One stream."""

    began: int | None  # the chunk after whose round the first rest began; None: none did
    woke: int | None  # the chunk whose round ended it
    served: Tally  # from then until the learner woke, or the stream ended
    forgone: Tally  # the same requests, served as the rule decides about a line that never rests


def rested(matrix: Matrix, rules: LearnRules) -> Rested:
    """Follow the first rest of a stream."""
    schedule, rule, live, began = LearnSchedule(rules), TrustedLine(DeliveryRules()), 0, None
    at_rest, served, forgone = 0, Tally(), Tally()
    for chunk in range(matrix.chunks):
        now_s = ROUND_S * (chunk + 1)
        schedule.observe(_tallies(matrix, live if began is None else at_rest, chunk))
        is_resting = schedule.decide(now_s).choice is LearnChoice.REST
        if began is not None:
            served, forgone = served + matrix.served(at_rest, chunk), forgone + matrix.served(live, chunk)
            if not is_resting:
                return Rested(began, chunk, served, forgone)
        if chunk == matrix.chunks - 1:
            break
        live = rule.decide(View(matrix, chunk, live))
        if began is None:
            schedule.record_learning(now_s, is_better=rule.ground is Ground.PROOF, is_warm=True)
            if schedule.decide(now_s + ROUND_S).choice is LearnChoice.REST:
                began, at_rest = chunk, live
    return Rested(began, None, served, forgone)


def _tallies(matrix: Matrix, version: int, chunk: int) -> list[Tally]:
    return [matrix.tally(version, int(request)) for request in (matrix.chunk_of == chunk).nonzero()[0]]
