"""Panel 5: why is it not faster, as `paceline explain` answers it."""

from ...policies.readings.causes.explanation import explain
from ...policies.readings.causes.periods import since_periods
from ..explain import DEFAULT_SINCE, as_fields, seconds
from .look import Look


def why_panel(look: Look) -> dict[str, object]:
    """Now against the time before, as the command compares them when it is told nothing."""
    seen = look.seen
    found = explain(*since_periods(seen.histories, seconds(DEFAULT_SINCE), seen.at))
    why = "" if found.request_speed is not None else "; ".join(found.unknown) or "nothing was served to compare"
    return {**as_fields(found, seen.state.rows), "why_unknown": why}
