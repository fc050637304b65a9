"""A Celery worker and beat that outlast what can pass: a Redis that refuses a command, not only one that is away.

Celery reconnects when the connection to its broker is lost. An error reply (a fail-over, no memory, a full disk, too
few replicas, a permission) would end its worker, and the thread of its beat in silence.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps
from celery.beat import EmbeddedService, Scheduler
from celery.worker.consumer import Consumer

_log = logging.getLogger(__name__)

#: Between two tries where Redis answers and refuses; Celery's own next try would be at once.
RETRY_S = 2.0
#: Of a beat between two looks at what is due.
_LONGEST_SLEEP_S = 1.0


def outlast_refusals(app: Celery, stalled: Callable[[Exception], None]) -> None:
    """Have workers and beats of `app` try again what Redis refuses; `stalled` is called each time, in their threads."""
    app.paceline_stalled = stalled
    app.conf.update(
        broker_channel_error_retry=True,
        worker_consumer=f"{__name__}:LastingConsumer",
        beat_scheduler=f"{__name__}:LastingScheduler",
    )


def add_beat(app: Celery) -> None:
    """Have workers of `app` start the learning rounds too, from a thread.

    Celery's own beat within a worker is a process forked from it: nobody would see its end.
    """
    app.conf.beat_max_loop_interval = _LONGEST_SLEEP_S

    class Beat(bootsteps.StartStopStep):  # type: ignore[misc]
        """The thread; the end of a worker waits for its sleep."""

        requires = ("celery.worker.components:Pool",)

        def create(self, worker: Any) -> Any:
            worker.beat = EmbeddedService(app, thread=True, scheduler_cls=LastingScheduler)
            return worker.beat

    app.steps["worker"].add(Beat)


class LastingConsumer(Consumer):  # type: ignore[misc]
    """Reads the messages that start learning rounds."""

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Do as Celery does, which logs it, and a moment later where it is a command that Redis refused."""
        super().on_connection_error_before_connected(exc)
        self._wait_if_refused(exc)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Do as before it."""
        super().on_connection_error_after_connected(exc)
        self._wait_if_refused(exc)

    def _wait_if_refused(self, exc: Exception) -> None:
        if not isinstance(exc, self.connection_errors):
            self.app.paceline_stalled(exc)
            time.sleep(RETRY_S)


class LastingScheduler(Scheduler):  # type: ignore[misc]
    """Sends the messages that start learning rounds; keeps nothing between two of them, so none is made up for."""

    def tick(self, *arguments: Any, **named: Any) -> float:
        """Seconds until the next tick; raises nothing, since that would end the thread of the beat."""
        try:
            seconds: float = super().tick(*arguments, **named)
        except Exception as fault:  # noqa: BLE001 - whatever it is, it may be gone by the next tick
            self._heap = None  # the entry that was due has left it
            self._cannot_send(fault)
            return RETRY_S
        return seconds

    def apply_async(self, *arguments: Any, **named: Any) -> Any:
        """Do as Celery does; None where the message could not be sent."""
        try:
            return super().apply_async(*arguments, **named)
        except Exception as fault:  # noqa: BLE001 - the next message is due within an interval
            self._cannot_send(fault)
            return None

    def _cannot_send(self, fault: Exception) -> None:
        _log.warning("no learning round was started: %s", fault)
        self.app.paceline_stalled(fault)
