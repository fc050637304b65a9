"""Has a replica delivered everything it served?"""

import time
from collections.abc import Callable, Mapping

from ..dashboards.tables import as_int


def drained(reading: Callable[[], Mapping[str, object]], clock: Callable[[], float] = time.time) -> Callable[[], bool]:
    """Whether a replica has delivered all it served before this call: a question to be asked again and again.

    The first reading made behind the call may come of a turn that looked for steps before it; the next one cannot.
    """
    asked, behind = clock(), 0.0

    def is_drained() -> bool:
        nonlocal behind
        now = reading()
        at = now.get("at")
        if not isinstance(at, int | float) or at <= asked:
            return False
        behind = behind or at
        return at > behind and not as_int(now, "open") and not as_int(now, "queued")

    return is_drained
