"""The one task: a learning round. Torch is loaded when a learning round starts, never by a beat or a command line."""

import logging
from functools import cache
from typing import Any

import msgspec
from celery import Celery, Task

from ...buffer.board.member_status import MemberStatus
from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.redis_client import client_for
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...policies.verdict_words import lead
from ..config import LearnerConfig
from ..heartbeat import Heartbeat

_log = logging.getLogger(__name__)

LEARN_ROUND = "paceline.learn_round"


@cache
def heartbeat_of(config: LearnerConfig) -> Heartbeat:
    """Return the one heartbeat of this process's learner; nothing is connected yet."""
    client = client_for(config.redis_url, config.redis_ca)
    return Heartbeat(config, RedisVersionBoard(client, config.buffer), RedisTraceBuffer(client, config.buffer))


def add_learn_round(app: Celery, config: LearnerConfig) -> Task:
    """Register the task on `app`; return it."""

    # A shared task would be registered with every later app of this process, with this app's settings.
    @app.task(name=LEARN_ROUND, shared=False)  # type: ignore[untyped-decorator]
    def learn_round() -> dict[str, object]:
        """One learning round for this process's speculator; returns what it did, as JSON values.

        Never retried: a retry would be a message to the Redis that may be away. When a learning round fails, for
        BufferUnavailable too, Celery logs it and the worker stays; traces it claimed stay pending, and the next beat
        starts a learning round that claims them again.
        """
        report = _learner(config).learn_once()
        _log.info("learning round of %s: %s, %s", config.speculator, report.kind.value, lead(report.why))
        said = MemberStatus()
        report.fill(said)
        found: dict[str, object] = msgspec.to_builtins(said)
        return found

    return learn_round


@cache
def _learner(config: LearnerConfig) -> Any:
    """Return the process's learner: its replay buffer and its optimiser live from one learning round to the next."""
    from ..round.loop import open_learner  # noqa: PLC0415 - torch; see the module

    return open_learner(config, heartbeat_of(config))
