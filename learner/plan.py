"""How one round trains: the numbers a trainer is given, checked at birth."""

import math
from dataclasses import dataclass

from ..buffer.errors import ConfigError
from ..policies.objective import Objective, Weighting


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How one round trains. ConfigError when a number is out of its range."""

    steps: int = 3  # draft length unrolled
    passes: int = 4  # over the fresh traces of a round
    batch_traces: int = 4
    cold_learning_rate: float = 3e-3
    warm_learning_rate: float = 1e-3
    cold_below: float = 0.5  # first-position acceptance under which a draft is cold
    replay_share: float = 0.5  # of every batch, drawn from the window
    objective: str = Objective.COMMITTED
    weighting: str | None = None  # None: survival while the draft is cold, 0.8^i from there on
    kl_weight: float = 0.0  # of KL(teacher || draft), beside the objective
    grad_clip: float = 1.0
    seed: int = 0
    bfloat16: bool = False  # run the forward pass under bfloat16 autocast

    def __post_init__(self) -> None:
        if min(self.steps, self.passes, self.batch_traces) < 1 or not 0.0 <= self.replay_share < 1.0:
            raise ConfigError(
                f"plan: got steps {self.steps}, passes {self.passes}, batch_traces {self.batch_traces}, "
                f"replay_share {self.replay_share}; expected the first three at least 1 and 0 <= replay_share < 1"
            )
        if self.objective not in set(Objective):
            raise ConfigError(f"objective: got {self.objective!r}, expected one of {[str(o) for o in Objective]}")
        if self.weighting is not None and self.weighting not in set(Weighting):
            raise ConfigError(
                f"weighting: got {self.weighting!r}, expected None or one of {[str(w) for w in Weighting]}"
            )
        if not 0.0 <= self.kl_weight < math.inf:
            raise ConfigError(f"kl_weight: got {self.kl_weight}, expected a number of at least 0")
