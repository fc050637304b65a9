"""Whether a draft is trained as a cold or as a warm one, and what that makes of learning rate and weighting.

A draft is warm long before it has learnt what it could. So its rate does not fall to the warm one at once, but decays
from the cold one over its steps: at a shift of traffic a line goes on learning fast while there is much to learn.
Warming up again and decaying is how trainings are continued on other text (arXiv:2403.08763).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...policies.objectives.names import Weighting
from .plan import Recipe

#: A warm draft is treated as cold again only below this share of `cold_below`, so that noise does not toggle it.
COLD_AGAIN = 0.8
#: Steps after which no recipe's rate has anything left to decay: those of a draft that was never seen cold.
_LONG_WARM = 1_000_000


@dataclass(slots=True)
class Regime:
    """Cold until it is known better."""

    is_cold: bool = True
    warm_steps: int = _LONG_WARM  # applied since the draft was trained as a cold one

    def choose(self, share: float, recipe: Recipe) -> None:
        """Cold until FirstPosition.share reaches `cold_below`; NaN leaves the regime as it is."""
        if share >= recipe.cold_below:
            self.is_cold = False
        elif share < COLD_AGAIN * recipe.cold_below:
            self.is_cold = True

    def record_step(self) -> None:
        """An optimiser step was applied."""
        self.warm_steps = 0 if self.is_cold else self.warm_steps + 1

    def learning_rate(self, recipe: Recipe) -> float:
        """AdamW's, of the next step: the cold one; of a warm draft what decay has left of it, at least the warm one."""
        if self.is_cold:
            return recipe.cold_learning_rate
        if not recipe.rate_half_life_steps:
            return recipe.warm_learning_rate
        left = recipe.cold_learning_rate * math.exp2(-self.warm_steps / recipe.rate_half_life_steps)
        return max(recipe.warm_learning_rate, left)

    @property
    def weighting(self) -> Weighting:
        """Return how much the later drafts of a round count."""
        return Weighting.SURVIVAL if self.is_cold else Weighting.GEOMETRIC

    def state(self) -> dict[str, Any]:
        """Return what `load` takes."""
        return {"is_cold": self.is_cold, "warm_steps": self.warm_steps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.is_cold = state["is_cold"]
        self.warm_steps = state["warm_steps"]
