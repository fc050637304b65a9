"""The worker's threads beside the one that learns: each runs from the worker's start to its end.

`paceline-asked` starts a learning round when a trainer asks for one, `paceline-aliases` sets MLflow's aliases back to
the board's while a learning round takes long, and `paceline-alive` beats for the learner.
"""

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps

from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.board.version_board import VersionBoard
from ...buffer.redis_client import client_for
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...buffer.stream.trace_buffer import MAX_WAIT_S, TraceBuffer
from ..config import LearnerConfig
from .tasks import LEARN_ROUND, heartbeat_of

_log = logging.getLogger(__name__)

#: Between an ask and the start of its learning round. A trainer asks when its last request has ended, and a server has
#: delivered the traces of that request less than this later.
SETTLE_S = 1.0
#: Between two tries to reach a Redis that is away.
RETRY_S = 1.0

#: Between two comparisons of aliases; after a failure, LONGEST_WAIT_S.
WATCH_S = 30.0
LONGEST_WAIT_S = 240.0


class _ThreadStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """A thread that runs from the worker's start to its end. Celery makes one for each worker."""

    requires = ("celery.worker.components:Pool",)
    thread_name = ""
    joined_s = 0.0  # the worker's end waits so long for the thread
    run: Callable[[threading.Event], None]  # until the event is set; each subclass has its own

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(self._stop,), name=self.thread_name, daemon=True)

    def start(self, _worker: Any) -> None:
        self._thread.start()

    def stop(self, _worker: Any) -> None:
        self._stop.set()
        self._thread.join(self.joined_s)


def add_threads(app: Celery, config: LearnerConfig) -> None:
    """Have every worker of `app` run the three threads."""

    class AskedRounds(_ThreadStep):
        """The thread that starts a learning round when one is asked for."""

        thread_name = "paceline-asked"
        joined_s = MAX_WAIT_S + SETTLE_S

        def run(self, stop: threading.Event) -> None:
            with client_for(config.redis_url, config.redis_ca) as client:
                follow_asks(RedisTraceBuffer(client, config.buffer), lambda: _send(app, config), stop)

    class AliasWatch(_ThreadStep):
        """The thread that compares MLflow's aliases; not joined, for MLflow may take its time to answer."""

        thread_name = "paceline-aliases"

        def run(self, stop: threading.Event) -> None:
            with client_for(config.redis_url, config.redis_ca) as client:
                board = RedisVersionBoard(client, config.buffer)
                watch_aliases(board, config.tracking_uri, config.registered_model, stop)

    class Liveness(bootsteps.StartStopStep):  # type: ignore[misc]
        """The thread that beats, which is the heartbeat's own."""

        requires = ("celery.worker.components:Pool",)

        def start(self, worker: Any) -> None:
            heartbeat_of(config).keep_beating(starts_rounds=bool(worker.beat))

        def stop(self, worker: Any) -> None:
            # Celery stops a worker while it handles what ended it; asked to stop, it has 0 for exit code.
            fault = sys.exception()
            by_itself = f"{type(fault).__name__}: {fault}, exit code {worker.exitcode}" if worker.exitcode else ""
            heartbeat_of(config).end(by_itself)

    for step in (AskedRounds, AliasWatch, Liveness):
        app.steps["worker"].add(step)


def follow_asks(buffer: TraceBuffer, start_round: Callable[[], object], stop: threading.Event) -> None:
    """Call `start_round` SETTLE_S after every ask until `stop` is set; blocks.

    An ask that came before this call counts as well, unless a learning round has taken it. While Redis is away it is
    tried again every RETRY_S.
    """
    last_id = ""
    is_away = False
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


def watch_aliases(board: VersionBoard, uri: str, model: str, stop: threading.Event) -> None:
    """Compare MLflow's aliases with the board every WATCH_S until `stop` is set, and set them back; blocks.

    Between learning rounds delivery/mlflow_registry.py does it. MLflow lets anybody edit an alias, and then shows
    another draft as live than serves. What is away is asked again later, and logged once.
    """
    attempts = None
    is_away = False
    while not stop.wait(LONGEST_WAIT_S if is_away else WATCH_S):
        # torch, which an idle worker's start does not load
        from ..delivery.alias_check import compare_once  # noqa: PLC0415
        from ..delivery.tracking.attempts import Attempts  # noqa: PLC0415

        attempts = attempts or Attempts()
        try:
            compare_once(board, uri, model, attempts)
            is_away = False
        except Exception as fault:  # noqa: BLE001 - whatever it is, this thread stays and asks again later
            if not is_away:
                _log.warning("MLflow's aliases are not compared with the board: %s", fault)
            is_away = True


def _send(app: Celery, config: LearnerConfig) -> None:
    """Send one message, as a beat does; no retry, for the thread tries again by itself."""
    app.send_task(LEARN_ROUND, queue=config.queue, expires=config.round_interval_s, retry=False)
