"""Celery's bookkeeping is left out of the log, under the names that Celery itself logs by; its errors are not."""

import logging
from collections.abc import Iterator

import celery.app.trace
import celery.beat
import celery.worker.strategy
import pytest
from paceline.learner.app import BOOKKEEPING, hush_bookkeeping


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in BOOKKEEPING}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def test_messages_received_tasks_done_and_messages_sent_are_left_out_and_failures_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loggers = [celery.worker.strategy.logger, celery.app.trace.logger, celery.beat.logger]
    assert [logger.name for logger in loggers] == [*BOOKKEEPING]
    caplog.set_level(logging.INFO)
    hush_bookkeeping()
    for logger in loggers:
        logger.info("Task learn_round received")
        logger.error("Task learn_round raised unexpected: OSError()")
    logging.getLogger("celery.worker.consumer").info("Connected to redis")
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3 + ["INFO"]
