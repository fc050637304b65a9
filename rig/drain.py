"""Has a replica delivered everything it served?"""

import time
from collections.abc import Callable, Mapping

from ..dashboards.tables import as_int


def drain_check(
    status: Callable[[], Mapping[str, object]], clock: Callable[[], float] = time.time
) -> Callable[[], bool]:
    """Return a check to be polled: whether a replica has delivered all it served before this call.

    `status` reads the replica's last heartbeat. The first heartbeat after this call may report a turn that began
    before it; the check therefore waits for a later one.
    """
    asked_at = clock()
    first_at = 0.0

    def is_drained() -> bool:
        nonlocal first_at
        now = status()
        at = now.get("at")
        if not isinstance(at, int | float) or at <= asked_at:
            return False
        first_at = first_at or at
        return at > first_at and not as_int(now, "open") and not as_int(now, "queued")

    return is_drained
