"""Step time, split into batch, draft steps chosen, learner at work, and the rest."""

from .amounts import Amounts
from .levels import Key, Weighted
from .logs import split_log_change
from .parts import Part

#: Decode steps of a bucket, a number of draft steps and a learner's state that make their mean time known.
MIN_STEPS = 30
_LEVELS = (Part.BATCH, Part.STEPS_TIME, Part.LEARNER, Part.REST)


def step_parts(before: Amounts, now: Amounts) -> dict[Part, float]:
    """Parts of -ln(step time): longer steps serve slower. Both periods hold steps."""
    logs = split_log_change(_cells(before), _cells(now), levels=len(_LEVELS) - 1, enough=MIN_STEPS)
    return {part: -log for part, log in zip(_LEVELS, logs, strict=True)}


def _cells(period: Amounts) -> dict[Key, Weighted]:
    return {tuple(key): Weighted(cell.steps, cell.seconds) for key, cell in period.steps.items() if cell.steps}
