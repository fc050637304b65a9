"""Starts the courier process, replaces one that died, and tells it how the scheduler process fares."""

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

from .. import config
from ..breaker import Breaker
from .courier_sender import CourierSender
from .outbox import Outbox

log = logging.getLogger(__name__)

#: How often the scheduler process looks after its courier and tells it its share of the reading.
WATCH_S = 1.0


class CourierProcess:
    """Starts the courier, starts another one when it died, and tells it how the scheduler process fares."""

    def __init__(
        self,
        settings: config.ServingConfig,
        breaker: Breaker,
        status: Callable[[], Mapping[str, Any]],
        is_canary: Callable[[], bool],
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-")  # for its owner alone
        self._endpoint = f"ipc://{self._folder.name}/courier"
        self.link = CourierSender(self._endpoint, settings.queue_bytes)
        self.outbox = Outbox(self.link, breaker, is_canary)
        self._settings, self._status = settings, status
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts, self._has_predecessor = 0, False
        self._stop, self._telling = threading.Event(), threading.Lock()

    def start(self) -> None:
        """Start the courier and the thread that watches it; needs no Redis."""
        self._spawn()
        threading.Thread(target=self._watch, name="paceline-watch", daemon=True).start()

    def stop(self) -> None:
        """End the courier; what it holds is not delivered."""
        self._stop.set()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.link.close()
        self._folder.cleanup()

    def look(self) -> None:
        """Replace a courier that died, send what waits, and the status; what a turn of the watch does."""
        if self._process is not None and self._process.poll() is not None:
            log.error("paceline: the courier ended with %s; starting another", self._process.returncode)
            self._restarts += 1
            self._has_predecessor = self.link.resume().counts.get("has_predecessor", False)
            self._spawn()
        self.outbox.flush()
        self.tell()

    def tell(self) -> None:
        """Tell the courier how this process fares when that is news; any thread may. It knows POLL_S seconds later."""
        with self._telling:  # a later look at the scheduler must not be told before an earlier one
            self.link.tell({**self._status(), "courier_restarts": self._restarts})

    def _watch(self) -> None:
        while not self._stop.wait(WATCH_S):
            try:
                self.look()
            except Exception:  # the watch outlives any fault; serving goes on without capture
                log.exception("paceline: watch over the courier")

    def _spawn(self) -> None:
        arguments = (self._endpoint, str(os.getpid()), "yes" if self._has_predecessor else "no")
        command = [sys.executable, "-m", "paceline.serving.courier", *arguments]
        env = config.courier_env(self._settings)
        # A process group of its own: whoever kills the server's, as `paceline serve` does once its leader has ended,
        # would kill the courier over what it still has to deliver. It ends by itself when its parent is gone.
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, process_group=0)
