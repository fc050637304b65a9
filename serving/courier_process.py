"""The courier as a process: its body, and the watch over it that runs in the scheduler process.

    python -m paceline.serving.courier_process ENDPOINT PARENT_PID HAS_PREDECESSOR

takes its settings from the environment and ends, with one last turn, when its parent is gone. HAS_PREDECESSOR is
`yes` when a courier of this server has taken the counts of the server before it over already, else `no`.
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..buffer.redis_board import RedisVersionBoard
from ..buffer.redis_client import client_for
from ..buffer.redis_stream import RedisTraceBuffer
from ..policies.canary import CanaryRules
from ..policies.guard import GuardLimits
from . import config
from .assembler import WindowAssembler
from .breaker import Breaker
from .counts import CaptureCounts
from .courier import Courier
from .cut import TeacherWidth
from .draft_watch import DraftWatch
from .inlet import Inlet
from .letters import Resume
from .link import CourierLink
from .outbox import Outbox
from .window import trace_maker

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
        self.link = CourierLink(self._endpoint, settings.tap_bytes)
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
        command = [sys.executable, "-m", "paceline.serving.courier_process", *arguments]
        env = config.courier_env(self._settings)
        # A process group of its own: whoever kills the server's, as `paceline serve` does once its leader has ended,
        # would kill the courier over what it still has to deliver. It ends by itself when its parent is gone.
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, process_group=0)


def run_courier(
    settings: config.ServingConfig, endpoint: str, has_predecessor: bool, is_orphan: Callable[[], bool]
) -> None:
    """Carry letters until `is_orphan`; blocks. A fault costs traces, each counted."""
    assert settings.redis_url is not None  # noqa: S101 - the plugin starts no courier without it
    counts, breaker = CaptureCounts(has_predecessor=has_predecessor), Breaker()
    client = client_for(settings.redis_url)
    maker = trace_maker(settings.replica, settings.target, settings.target_version)
    assembler = WindowAssembler(maker, counts, settings.window_tokens, settings.context_tokens)

    def resume(where: Resume) -> None:
        counts.resume(where.counts, where.begun_since)
        assembler.ignore(where.cut_off)

    board, rules = RedisVersionBoard(client, settings.buffer), CanaryRules(max_requests=settings.canary_requests)
    watch = DraftWatch(board, settings.replica, rules, GuardLimits(), alternates=settings.canary_window_s > 0.0)
    inlet = Inlet(endpoint, TeacherWidth(settings.top_k, settings.greedy_top_k), resume)
    courier = Courier(
        inlet,
        assembler,
        counts,
        breaker,
        RedisTraceBuffer(client, settings.buffer),
        board,
        f"replica:{settings.replica}",
        settings.backlog_bytes,
        watch,
    )
    try:
        courier.run(is_orphan)
    finally:
        inlet.close()


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server; the courier ends when the server has
    endpoint, parent, has_predecessor = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "yes"
    # Told, for the parent may be gone before this line is reached.
    run_courier(config.from_env(), endpoint, has_predecessor, lambda: os.getppid() != parent)


if __name__ == "__main__":
    _main()
