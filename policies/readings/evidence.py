"""A reading of a window: its figure with count, age and interval, or why it is unknown."""

from .definitions import DEFINITIONS, Reading
from .windows import Window

#: What a member is that counts a part of Counters.
_WHO = {"served": "replica", "scheduler": "replica", "traces": "replica", "learner": "learner"}


def why_absent(window: Window, part: str, max_age_s: float) -> str:
    """Why a part says nothing of the window; empty where it does."""
    at = window.at(part)
    if at is None:
        return f"no {_WHO[part]} sent these counters in the window"
    age_s = window.until_s - at
    return f"the newest counters are {age_s:.0f} s old" if age_s > max_age_s else ""


def reading(
    window: Window,
    name: str,
    *,
    part: str,
    value: float | None,
    count: float = 0,
    error: float | None = None,
    why: str = "nothing was counted in the window",
    floor: float = 0.0,
) -> Reading:
    """The reading `name` of what `part` counted; unknown with `why` where `value` is None.

    Unknown too where the part is absent or too old. `error` is half the width of its 95 % interval, which does not
    reach below `floor`.
    """
    absent = why_absent(window, part, DEFINITIONS[name].max_age_s)
    if absent or value is None:
        return Reading(name=name, value=None, at=window.at(part), why_unknown=absent or why)
    low, high = (None, None) if error is None else (max(value - error, floor), value + error)
    return Reading(name=name, value=value, count=round(count), at=window.at(part), low=low, high=high)


def ratio(amount: float, by: float) -> float | None:
    """`amount` / `by`; None where there is nothing to divide by."""
    return amount / by if by else None
