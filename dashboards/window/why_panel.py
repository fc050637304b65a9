"""Panel 5: why is it not faster, as `paceline explain` answers it when it is told nothing."""

from ..explain import as_fields, explained
from ..headline import nobody_serves
from .look import Look


def why_panel(look: Look) -> dict[str, object]:
    """The last minute against the time before: sentences, contributions that add up, and what cannot be told.

    Nothing is told of now where no server is alive.
    """
    found = explained(look.seen, None, None)
    is_known = found.found.request_speed is not None
    unknown = "" if is_known else "; ".join(found.unknown) or "nothing was served to compare"
    why = nobody_serves(look.seen) or unknown
    return {**as_fields(found), "why_unknown": why}
