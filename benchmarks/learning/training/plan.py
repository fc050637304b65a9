"""Everything a row of the bench may vary about training; the defaults are production's."""

import math
from dataclasses import dataclass, replace
from typing import Self

from ....buffer.errors import ConfigError
from ....learner.training.plan import RECIPE, Recipe, TrainingPlan
from ....policies.objectives.baselines.names import Baseline
from ....policies.objectives.baselines.table import BENCH_OBJECTIVES
from ....policies.objectives.names import Objective, Weighting

_PRODUCT = TrainingPlan()
_AT_LEAST_ZERO = ("off_path_weight", "recency_half_life_traces", "replay_errors")


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How one run trains. ConfigError when a number is out of its range."""

    steps: int = _PRODUCT.steps
    passes: int = _PRODUCT.passes
    objective: str = _PRODUCT.objective  # of BENCH_OBJECTIVES
    seed: int = _PRODUCT.seed
    batch_traces: int = RECIPE.batch_traces
    replay_share: float = RECIPE.replay_share
    cold_learning_rate: float = RECIPE.cold_learning_rate
    warm_learning_rate: float = RECIPE.warm_learning_rate
    matrix_rate: float = RECIPE.matrix_rate
    context_weight: float = _PRODUCT.context_weight  # where the objective weighs rows; others have none of the context
    cold_below: float = RECIPE.cold_below
    rate_half_life_steps: float = RECIPE.rate_half_life_steps
    weighting: str | None = None  # None: as production, survival while the draft is cold, 0.8^i from there on
    off_path_weight: float = 0.0  # of nodes after a first rejection, against those of the committed text; 0: left out
    recency_half_life_traces: float = 0.0  # replayed traces that much older are drawn half as often; 0: all alike
    replay_errors: float = 0.0  # a trace whose drafts were all rejected is replayed 1 + this times as often
    teacher_temperature: float = 1.0  # below 1 sharpens soft labels, on top of the request's own sampling

    def __post_init__(self) -> None:
        if self.objective not in BENCH_OBJECTIVES:
            raise ConfigError(f"objective: got {self.objective!r}, expected one of {list(map(str, BENCH_OBJECTIVES))}")
        if self.weighting is not None and self.weighting not in set(Weighting):
            raise ConfigError(
                f"weighting: got {self.weighting!r}, expected None or one of {[str(w) for w in Weighting]}"
            )
        for name in _AT_LEAST_ZERO:
            self._check(name, 0.0 <= getattr(self, name) < math.inf, "a number of at least 0")
        self._check("teacher_temperature", 0.0 < self.teacher_temperature < math.inf, "a number above 0")
        _ = self.product, self.recipe  # they check their own numbers

    @property
    def product(self) -> TrainingPlan:
        """What production's trainer is given; the objective is the bench's own to score."""
        weight = self.context_weight if BENCH_OBJECTIVES[self.objective].weighs_rows else 0.0
        return TrainingPlan(self.steps, self.passes, seed=self.seed, context_weight=weight)

    @property
    def recipe(self) -> Recipe:
        """The numbers that are constants in production."""
        return Recipe(
            self.batch_traces,
            self.replay_share,
            self.cold_learning_rate,
            self.warm_learning_rate,
            self.matrix_rate,
            self.cold_below,
            self.rate_half_life_steps,
        )

    @property
    def distils_reference(self) -> bool:
        """Whether another draft has to learn the same traces first, to be compared with: AdaSPEC's reference."""
        return self.objective == Baseline.SELECTIVE

    @property
    def of_reference(self) -> Self:
        """How that draft trains: as this one, by forward KL at every position."""
        return replace(self, objective=Objective.SOFT)

    def _check(self, name: str, is_right: bool, expected: str) -> None:
        if not is_right:
            raise ConfigError(f"{name}: got {getattr(self, name)}, expected {expected}")
