"""The learner's log without Celery's bookkeeping: what a learning round did is said by paceline, once."""

import logging
from typing import Final

#: Celery's loggers of messages received, tasks done and messages sent by the beat: three lines a learning round.
BOOKKEEPING: Final = ("celery.worker.strategy", "celery.app.trace", "celery.beat")


def hush_bookkeeping() -> None:
    """Leave out what these loggers say at INFO; their warnings and errors, such as a task that failed, stay."""
    for name in BOOKKEEPING:
        logging.getLogger(name).setLevel(logging.WARNING)
