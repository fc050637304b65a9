"""How one round trains: the numbers a trainer is given, checked at birth."""

import math
from dataclasses import dataclass

from ...buffer.errors import ConfigError
from ...policies.objectives.losses import Objective, Weighting

_AT_LEAST_ZERO = ("kl_weight", "off_path_weight", "recency_half_life_traces", "replay_errors", "kl_decay_steps")


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How one round trains. ConfigError when a number is out of its range.

    The defaults are what `benchmarks/learning` found; docs/learning.md has the tables.
    """

    steps: int = 3  # draft length unrolled
    passes: int = 4  # over the fresh traces of a round
    batch_traces: int = 4
    cold_learning_rate: float = 5e-3
    warm_learning_rate: float = 5e-4
    cold_below: float = 0.5  # share of what could stand at the first position under which a draft is cold
    replay_share: float = 0.5  # of every batch, drawn from the window
    objective: str = Objective.SOFT  # as served: greedy ones one token
    weighting: str | None = None  # None: survival while the draft is cold, 0.8^i from there on
    kl_weight: float = 0.0  # of KL(teacher || draft), beside the objective
    grad_clip: float = 1.0
    seed: int = 0
    bfloat16: bool | None = None  # forward pass under bfloat16 autocast; None: where the device has instructions for it
    off_path_weight: float = 0.0  # of nodes behind a first rejection, against those of the committed text; 0: left out
    recency_half_life_traces: float = 0.0  # replayed traces that much older are drawn half as often; 0: all alike
    replay_errors: float = 0.0  # a trace whose drafts were all rejected is replayed 1 + this times as often
    tenant_balance: float = 4.0  # a rarer tenant's traces are replayed up to so many times as often; 1: by their number
    kl_decay_steps: int = 0  # applied steps after which kl_weight has halved; 0: it stays
    teacher_temperature: float = 1.0  # below 1 sharpens soft labels, on top of the request's own sampling
    ema_decay: float = 0.0  # of the moving average of the weights, by applied step; 0: none is kept

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
        for name in _AT_LEAST_ZERO:
            self._check(name, 0.0 <= getattr(self, name) < math.inf, "a number of at least 0")
        self._check("tenant_balance", 1.0 <= self.tenant_balance < math.inf, "a number of at least 1")
        self._check("teacher_temperature", 0.0 < self.teacher_temperature < math.inf, "a number above 0")
        self._check("ema_decay", 0.0 <= self.ema_decay < 1.0, "at least 0 and below 1")

    def _check(self, name: str, is_right: bool, expected: str) -> None:
        if not is_right:
            raise ConfigError(f"{name}: got {getattr(self, name)}, expected {expected}")
