"""A worker is alive between learning rounds and before its first one, and says so: the thread that beats for it."""

import sys
from functools import cache
from typing import Any

from celery import Celery, bootsteps

from ...buffer.redis_board import RedisVersionBoard
from ...buffer.redis_client import client_for
from ...buffer.redis_stream import RedisTraceBuffer
from ..config import LearnerConfig
from ..heartbeat import Heartbeat


@cache
def heartbeat_of(config: LearnerConfig) -> Heartbeat:
    """The one heartbeat of this process's learner; nothing is connected yet."""
    client = client_for(config.redis_url, config.redis_ca)
    return Heartbeat(config, RedisVersionBoard(client, config.buffer), RedisTraceBuffer(client, config.buffer))


def add_liveness(app: Celery, config: LearnerConfig) -> None:
    """Have every worker of `app` beat from its start to its end."""

    class Liveness(bootsteps.StartStopStep):  # type: ignore[misc]
        """The thread that beats."""

        requires = ("celery.worker.components:Pool",)

        def start(self, worker: Any) -> None:
            heartbeat_of(config).keep_beating(starts_rounds=bool(worker.beat))

        def stop(self, worker: Any) -> None:
            # Celery stops a worker while it handles what ended it; asked to stop, it has 0 for exit code.
            fault = sys.exception()
            by_itself = f"{type(fault).__name__}: {fault}, exit code {worker.exitcode}" if worker.exitcode else ""
            heartbeat_of(config).end(by_itself)

    app.steps["worker"].add(Liveness)
