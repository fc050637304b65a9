"""The one task: a learning round. Torch is loaded when a learning round starts, never by a beat or a command line."""

import logging
from functools import cache
from typing import Any

from celery import Celery, Task

from ...buffer.plain_text import lead
from ..config import LearnerConfig

_log = logging.getLogger(__name__)

LEARN_ROUND = "paceline.learn_round"


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
        status: dict[str, object] = report.status()
        return status

    return learn_round


@cache
def _learner(config: LearnerConfig) -> Any:
    """The process's learner: its replay buffer and its optimiser live from one learning round to the next."""
    from .wiring import open_learner  # noqa: PLC0415 - torch; see the module

    return open_learner(config)
