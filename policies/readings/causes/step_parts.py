"""Step time, split into batch, draft steps chosen, learner at work, and the rest."""

from .amounts import Amounts
from .levels import Weighted, pooled, split_change
from .logs import log_parts
from .parts import Part

#: Decode steps of a bucket, a number of draft steps and a learner's state that make their mean time known.
MIN_STEPS = 30
_LEVELS = (Part.BATCH, Part.STEPS_TIME, Part.LEARNER, Part.REST)


def step_parts(before: Amounts, now: Amounts) -> dict[Part, float]:
    """Parts of -ln(step time): longer steps serve slower. Both periods hold steps."""
    cells = [
        {tuple(key): Weighted(cell.steps, cell.seconds) for key, cell in period.steps.items() if cell.steps}
        for period in (before, now)
    ]
    moved = split_change(*cells, levels=len(_LEVELS) - 1, enough=MIN_STEPS)
    means = (pooled(period.values()).mean for period in cells)
    return {part: -log for part, log in zip(_LEVELS, log_parts(moved, *means), strict=True)}
