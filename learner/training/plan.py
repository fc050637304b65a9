"""How one learning round trains: what a learner's settings decide, and the numbers that the learning bench found."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...buffer.errors import ConfigError
from ...policies.objectives.names import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """The choices of a learner's settings. ConfigError when a value is out of its range."""

    steps: int = 3  # draft length unrolled
    passes: int = 4  # over the fresh traces of a learning round
    objective: str = Objective.SOFT
    seed: int = 0
    batch_tokens: int = 8192  # through the device at once, padding included; more of a batch is taken in parts
    context_weight: float = 1.0  # of rows of the context, for a draft that reaches nothing; see context_weight()

    def __post_init__(self) -> None:
        if min(self.steps, self.passes, self.batch_tokens) < 1:
            got = f"steps {self.steps}, passes {self.passes}, batch_tokens {self.batch_tokens}"
            raise ConfigError(f"plan: got {got}; expected each at least 1")
        if not 0.0 <= self.context_weight <= 1.0:
            raise ConfigError(f"plan: got context_weight {self.context_weight}, expected 0 to 1")
        if self.objective not in set(Objective):
            raise ConfigError(f"objective: got {self.objective!r}, expected one of {[str(o) for o in Objective]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The other numbers of a learning round. Production always trains by RECIPE; benchmarks vary them.

    ConfigError when a number is out of its range. docs/learning.md has the tables that the defaults are from.
    """

    batch_traces: int = 4
    replay_share: float = 0.5  # of every batch, drawn from the replay buffer
    cold_learning_rate: float = 5e-3
    warm_learning_rate: float = 5e-4
    matrix_rate: float = 2.0  # learning rate of Muon, which moves hidden matrices, over AdamW's; 0: AdamW moves all
    cold_below: float = 0.5  # share of the attainable acceptance at the first position under which a draft is cold
    rate_half_life_steps: float = 40.0  # of the rate of a draft that is cold no more; 0: the warm one at once

    def __post_init__(self) -> None:
        if self.batch_traces < 1 or not 0.0 <= self.replay_share < 1.0 or not 0.0 <= self.matrix_rate < math.inf:
            raise ConfigError(
                f"recipe: got batch_traces {self.batch_traces}, replay_share {self.replay_share}, "
                f"matrix_rate {self.matrix_rate}; expected batch_traces at least 1, 0 <= replay_share < 1 and a "
                "finite matrix_rate of at least 0"
            )
        if not 0.0 <= self.rate_half_life_steps < math.inf:
            raise ConfigError(
                f"recipe: got rate_half_life_steps {self.rate_half_life_steps}, expected a finite number of at least 0"
            )


RECIPE = Recipe()
#: From here on rows of the context, which take half as long again, gained nothing measurable (docs/learning.md).
_LEAVES_CONTEXT_AT = 0.6


def context_weight(most: float, share: float) -> float:
    """Return the weight of a context row for a draft with this share of the attainable acceptance; 0: not at all.

    `most` at a share of 0, and less the more the draft reaches: what a prompt goes on with is not what the target would
    have said, and only a draft that has much to learn gains by it. `share` NaN, for no rows at all, gives 0.
    """
    return most * (1.0 - share) if share < _LEAVES_CONTEXT_AT else 0.0


class PassBudget:
    """Decides how often a learning round passes over its traces, by how long the last one took for each pass.

    A learner that trains for nearly as long as its traces take to come claims more of them with every learning round,
    which then takes longer still: its drafts come late, learnt from traffic of a while ago. With fewer passes it stays
    close. For the worker's thread alone.

    `share` is how much of the time between two learning rounds training may take; 0: any. `clock` gives seconds, of
    which only differences matter.
    """

    def __init__(self, most: int, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._share = share
        self._clock = clock
        self._began_s: float | None = None
        self._pass_s: float | None = None  # of one trace

    def begin(self, traces: int) -> int:
        """Return how often a learning round that trains from now on passes over its `traces`: 1 to `most` times.

        `most` times in the first one, of which nothing is known.
        """
        now_s = self._clock()
        began_s = self._began_s
        self._began_s = now_s
        if not self._share or began_s is None or not self._pass_s:
            return self._most
        affordable = self._share * (now_s - began_s) / (traces * self._pass_s)
        return min(max(round(affordable), 1), self._most)

    def end(self, traces: int, passes: int, seconds: float) -> None:
        """Training passed over `traces` so many times in `seconds`."""
        self._pass_s = seconds / (traces * passes)
