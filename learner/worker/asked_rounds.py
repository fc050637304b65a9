"""Starts a learning round as soon as a trainer asks for one, in between the beats: a thread of the Celery worker."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps

from ...buffer.base import MAX_WAIT_S, TraceBuffer
from ...buffer.redis_client import client_for
from ...buffer.redis_stream import RedisTraceBuffer
from ..config import LearnerConfig
from .tasks import LEARN_ROUND

_log = logging.getLogger(__name__)

#: Between an ask and the start of its learning round. A trainer asks when its last request has ended, and a server has
#: delivered the traces of that request less than this later.
SETTLE_S = 1.0
#: Between two tries to reach a Redis that is away.
RETRY_S = 1.0


def add_asked_rounds(app: Celery, config: LearnerConfig) -> None:
    """Have every worker of `app` start a learning round when one is asked for."""

    class AskedRounds(bootsteps.StartStopStep):  # type: ignore[misc]
        """The thread, from the worker's start to its end."""

        requires = ("celery.worker.components:Pool",)

        def __init__(self, worker: Any, **options: Any) -> None:
            super().__init__(worker, **options)
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._run, name="paceline-asked", daemon=True)

        def start(self, _worker: Any) -> None:
            self._thread.start()

        def stop(self, _worker: Any) -> None:
            self._stop.set()
            self._thread.join(MAX_WAIT_S + SETTLE_S)

        def _run(self) -> None:
            with client_for(config.redis_url, config.redis_ca) as client:
                follow_asks(RedisTraceBuffer(client, config.buffer), lambda: _send(app, config), self._stop)

    app.steps["worker"].add(AskedRounds)


def follow_asks(buffer: TraceBuffer, start_round: Callable[[], object], stop: threading.Event) -> None:
    """Call `start_round` SETTLE_S after every ask until `stop` is set; blocks.

    An ask that came before this call counts as well, unless a learning round has taken it. While Redis is away it is
    tried again every RETRY_S.
    """
    last_id, is_away = "", False
    while not stop.is_set():
        try:
            ask_id = buffer.wait_for_ask(last_id, MAX_WAIT_S)
            if ask_id and not stop.wait(SETTLE_S):
                start_round()
                last_id = ask_id
            is_away = False
        except Exception as fault:  # noqa: BLE001 - what Redis refuses, Celery passes on as it comes; this thread stays
            if not is_away:
                _log.warning("asks for learning rounds are not seen; the next beat will start one: %s", fault)
            is_away = True
            stop.wait(RETRY_S)


def _send(app: Celery, config: LearnerConfig) -> None:
    """One message, as a beat sends it; no retry, for the thread tries again by itself."""
    app.send_task(LEARN_ROUND, queue=config.queue, expires=config.round_interval_s, retry=False)
