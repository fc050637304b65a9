"""Panel 5: why is it not faster, as `paceline explain` answers it when it is told nothing."""

from ..explain import as_fields, explained
from .look import Look


def why_panel(look: Look) -> dict[str, object]:
    """The last minute against the time before: sentences, contributions that add up, and what cannot be told."""
    found = explained(look.seen, None, None)
    is_known = found.found.request_speed is not None
    why = "" if is_known else "; ".join(found.unknown) or "nothing was served to compare"
    return {**as_fields(found), "why_unknown": why}
