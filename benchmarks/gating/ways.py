"""Ways to train once traffic has moved, to be compared with the product's, and how the learner sees that it has."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from ...buffer.trace import DraftTrace
from ...learner.training.plan import RECIPE, Recipe, TrainingPlan
from ...policies.learn_schedule import requests_since_a_change
from .pool import SETTING

#: A change counts as a fall when so much less is accepted after it; as where a rest ends.
FALL_SHARE = 0.10
#: Requests before the change that it is compared with.
USUAL_REQUESTS = 200
#: Requests after the change for which a line trains differently: four rounds.
MOVED_REQUESTS = 160


class Replayed(StrEnum):
    """Which part of the replay buffer fills the batches up while traffic has just moved."""

    ALL = "all of it"
    SINCE = "what came since the shift"
    BALANCED = "as many traces from before the shift as since"


@dataclass(frozen=True, slots=True)
class Way:
    """How a line trains while its traffic has just moved; before and afterwards as the product does."""

    name: str
    passes: int = TrainingPlan().passes
    rate: float = 1.0  # learning rate, as a multiple of the product's
    replayed: Replayed = Replayed.ALL
    is_at_rest: bool = False  # the shift meets a learner at rest, which has to wake first

    def plan(self, seed: int, *, has_moved: bool) -> TrainingPlan:
        """Of one round."""
        plan = TrainingPlan(steps=SETTING.steps, seed=seed)
        return replace(plan, passes=self.passes) if has_moved else plan

    def recipe(self, *, has_moved: bool) -> Recipe:
        """Of one round."""
        cold, warm = RECIPE.cold_learning_rate * self.rate, RECIPE.warm_learning_rate * self.rate
        return replace(RECIPE, cold_learning_rate=cold, warm_learning_rate=warm) if has_moved else RECIPE

    def chosen(self, replay: Iterable[tuple[int, DraftTrace]], moved_at: int | None) -> list[DraftTrace]:
        """Of the replay buffer, oldest first and with numbers of requests; without `moved_at` all of it."""
        numbered = list(replay)
        if moved_at is None or self.replayed is Replayed.ALL:
            return [trace for _, trace in numbered]
        older = [trace for number, trace in numbered if number < moved_at]
        since = [trace for number, trace in numbered if number >= moved_at]
        kept = len(since) if self.replayed is Replayed.BALANCED else 0
        return older[max(len(older) - kept, 0) :] + since if kept else since


TODAY = "today's"
SMALL_ROUNDS = "rounds of half the size"
WAYS = (
    Way("8 passes", passes=8),
    Way("three times the rate", rate=3.0),
    Way("replay since the shift", replayed=Replayed.SINCE),
    Way("replay balanced", replayed=Replayed.BALANCED),
    Way("8 passes and replay since the shift", passes=8, replayed=Replayed.SINCE),
    Way("at rest when the shift comes", is_at_rest=True),
)


class ShiftWatch:
    """Sees, from what is served, that traffic has moved: ADWIN cuts, and after the cut FALL_SHARE less is accepted."""

    def __init__(self) -> None:
        self._served: list[float] = []  # accepted per round, by request
        self.moved_at: int | None = None  # the first request of the new traffic

    def observe(self, served: Sequence[float]) -> None:
        """Add what was accepted per round of each request of a claim, in the order served."""
        self._served += served
        since = requests_since_a_change(self._served)
        before, after = self._served[:-since][-USUAL_REQUESTS:], self._served[-since:]
        if before and np.mean(after) < (1.0 - FALL_SHARE) * np.mean(before):
            # ADWIN drops a little more than it should, and a claim is of one kind more often than not.
            moved_at = len(self._served) - max(since, len(served))
            if self.moved_at is None or moved_at >= self.moved_at + MOVED_REQUESTS:
                self.moved_at = moved_at

    @property
    def has_moved(self) -> bool:
        """Whether the newest request is among the first MOVED_REQUESTS of new traffic."""
        return self.moved_at is not None and len(self._served) - self.moved_at <= MOVED_REQUESTS

    @property
    def served(self) -> tuple[float, ...]:
        """All that was observed, oldest first."""
        return tuple(self._served)
