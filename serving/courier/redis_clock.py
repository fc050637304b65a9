"""How far this host's clock is from Redis': times of different hosts are compared with each other on the board."""

import time
from collections.abc import Callable
from typing import Any

from ...buffer.redis_client import translate_redis_errors

#: Between two looks; clocks drift slowly, and may be set.
LOOK_S = 60.0


class RedisClock:
    """Compares the two every LOOK_S seconds. For the courier's thread."""

    def __init__(self, client: Any, clock: Callable[[], float] = time.time) -> None:
        """`client` is one of buffer/redis_client.py."""
        self._client = client
        self._clock = clock
        self._looked_at = -LOOK_S
        self.offset_s: float | None = None  # by which this host is ahead; None until Redis has been asked

    def look(self, now: float) -> None:
        """Ask Redis if it is time; may raise BufferUnavailable."""
        if 0.0 <= now - self._looked_at < LOOK_S:  # a clock that was set back is looked at again
            return
        with translate_redis_errors(self._client):
            began = self._clock()
            seconds, microseconds = self._client.time()
            ended = self._clock()
        self._looked_at = now
        self.offset_s = round((began + ended) / 2 - (seconds + microseconds / 1e6), 4)
