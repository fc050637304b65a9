"""Sets MLflow's aliases back to the board's while a learning round takes long: a thread of the Celery worker.

Between learning rounds delivery/mlflow_registry.py does it. MLflow lets anybody edit an alias, and then shows another
draft as live than serves.
"""

import logging
import threading
from typing import Any

from celery import Celery, bootsteps

from ...buffer.base import VersionBoard
from ...buffer.redis_board import RedisVersionBoard
from ...buffer.redis_client import client_for
from ..config import LearnerConfig

_log = logging.getLogger(__name__)

#: Between two comparisons; after a failure, LONGEST_WAIT_S.
WATCH_S = 30.0
LONGEST_WAIT_S = 240.0


def add_alias_watch(app: Celery, config: LearnerConfig) -> None:
    """Have every worker of `app` compare MLflow's aliases with the board."""

    class AliasWatch(bootsteps.StartStopStep):  # type: ignore[misc]
        """The thread, from the worker's start to its end."""

        requires = ("celery.worker.components:Pool",)

        def __init__(self, worker: Any, **options: Any) -> None:
            super().__init__(worker, **options)
            self._stop = threading.Event()
            self._thread = threading.Thread(target=self._run, name="paceline-aliases", daemon=True)

        def start(self, _worker: Any) -> None:
            self._thread.start()

        def stop(self, _worker: Any) -> None:
            self._stop.set()  # not joined: MLflow may take its time to answer, and nothing here must be ended well

        def _run(self) -> None:
            with client_for(config.redis_url, config.redis_ca) as client:
                board = RedisVersionBoard(client, config.buffer)
                watch_aliases(board, config.tracking_uri, config.registered_model, self._stop)

    app.steps["worker"].add(AliasWatch)


def watch_aliases(board: VersionBoard, uri: str, model: str, stop: threading.Event) -> None:
    """Compare every WATCH_S until `stop` is set; blocks. What is away is asked again later, and logged once."""
    attempts, is_away = None, False
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
