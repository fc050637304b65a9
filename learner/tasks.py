"""The one task: a round of learning. Torch is loaded when a round starts, never by a beat or a command line."""

import logging
from functools import cache
from typing import Any

from celery import Celery, Task

from ..buffer.errors import BufferUnavailable
from .config import LearnerConfig

_log = logging.getLogger(__name__)

LEARN_ROUND = "paceline.learn_round"

#: Tries of one round while Redis is away, and the longest wait between two of them; the next beat comes anyway.
_RETRIES = 5
_LONGEST_BACKOFF_S = 60


def add_learn_round(app: Celery, config: LearnerConfig) -> Task:
    """Register the task on `app`; return it."""

    @app.task(  # type: ignore[untyped-decorator]
        name=LEARN_ROUND,
        shared=False,  # else every later app of the process gets this one too, with settings that are not its own
        bind=False,
        autoretry_for=(BufferUnavailable,),
        retry_backoff=True,
        retry_backoff_max=_LONGEST_BACKOFF_S,
        max_retries=_RETRIES,
    )
    def learn_round() -> dict[str, object]:
        """One round for this process's speculator; what it did, as JSON values."""
        report = _learner(config).learn_once()
        _log.info("round of %s: %s, %s", config.speculator, report.kind.value, report.why)
        reading: dict[str, object] = report.status()
        return reading

    return learn_round


@cache
def _learner(config: LearnerConfig) -> Any:
    """The process's learner: its window and its optimiser live from one round to the next."""
    from .wiring import open_learner  # noqa: PLC0415 - torch; see the module

    return open_learner(config)
