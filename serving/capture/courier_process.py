"""Starts the courier process, replaces one that died or hangs, and reports the scheduler's status to it."""

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from ...buffer.board.member_status import CourierSaid, MemberStatus
from .. import config
from ..breaker import Breaker
from ..wire.messages import POLL_S
from .courier_sender import CourierSender
from .outbox import Outbox

log = logging.getLogger(__name__)

#: How often the scheduler process looks after its courier and reports its share of the status.
LOOK_S = 1.0
#: A courier without a receipt for this long hangs. A Redis call may block it for its time-outs, connecting and
#: reading two seconds each, and its resolver for several more; a turn makes a few of those calls between two receipts.
MAX_SILENCE_S = 60.0
#: The wait before the next start when a courier has not lived for SHORT_LIFE_S: LOOK_S, doubled for each further one
#: in a row.
SHORT_LIFE_S = 60.0
MAX_BACKOFF_S = 60.0


class CourierProcess:
    """Starts the courier, replaces one that died or hangs, and reports the scheduler's status to it."""

    def __init__(
        self,
        settings: config.ServingConfig,
        boot: str,
        *,
        breaker: Breaker,
        status: Callable[[], MemberStatus],
        is_canary_out: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-")  # for its owner alone
        self._endpoint = f"ipc://{self._folder.name}/courier"
        self.sender = CourierSender(self._endpoint, settings.queue_bytes)
        self.outbox = Outbox(self.sender, breaker, is_canary_out)
        self._settings = settings
        self._boot = boot
        self._status = status
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None  # None: the next one is to be started at `_start_at_s`
        self._started_at_s = self._start_at_s = self._looked_at_s = clock()
        self._backoff_s = 0.0  # between the last death and the next start
        self._receipts = 0
        self._silence_s = 0.0
        self._is_hung = False
        self._restarts = 0
        self._has_predecessor = False
        self._fault = ""
        self._stop = threading.Event()
        self._reporting = threading.Lock()

    @property
    def replica(self) -> str:
        """The name that the board knows this replica by; empty until its courier has found out."""
        return self.sender.member.removeprefix("replica:")

    def start(self) -> None:
        """Start the courier and the thread that supervises it; needs no Redis."""
        self._spawn()
        threading.Thread(target=self._supervise, name="paceline-courier", daemon=True).start()

    def stop(self) -> None:
        """End the courier; what it holds is not delivered."""
        self._stop.set()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.sender.close()
        self._folder.cleanup()

    def look(self) -> None:
        """Replace a courier that died or hangs, and send what waits, the status included."""
        self._look_after()
        self.outbox.flush()
        self.report()

    def report(self) -> None:
        """Report this process's status if it has changed; any thread may. The courier has it POLL_S seconds later."""
        with self._reporting:  # of two statuses, the later one must be reported last
            said = self._status()
            said.courier = CourierSaid(restarts=self._restarts, fault=self._fault, backoff_s=self._backoff_s)
            self.sender.report(said)

    def tell(self) -> None:
        """Report it and wait until the courier has it, or this is stopped."""
        self.report()
        self._stop.wait(POLL_S)

    def _supervise(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.look()
            except Exception:  # supervision outlives any fault; serving goes on without capture
                log.exception("paceline: supervision of the courier")

    def _look_after(self) -> None:
        now_s = self._clock()
        # Not more than two looks: while this process was suspended itself, it could not read receipts.
        since_s = min(now_s - self._looked_at_s, 2 * LOOK_S)
        self._looked_at_s = now_s
        if self._process is not None and self._process.poll() is not None:
            self._bury(f"ended with {self._process.returncode}", now_s)
        elif self._process is not None:
            self._listen(self._process, since_s)
        if self._process is None and now_s >= self._start_at_s:
            self._spawn()

    def _listen(self, process: "subprocess.Popen[bytes]", since_s: float) -> None:
        """Kill a courier that is silent for too long; a later look finds it dead, like any other."""
        receipts = self.sender.read_receipts()
        self._silence_s = self._silence_s + since_s if receipts == self._receipts else 0.0
        self._receipts = receipts
        if self._silence_s > MAX_SILENCE_S and not self._is_hung:
            log.error("paceline: the courier has sent no receipt for %.0f s; killing it", self._silence_s)
            self._is_hung = True
            process.kill()

    def _bury(self, how: str, now_s: float) -> None:
        life_s = now_s - self._started_at_s
        is_short = life_s < SHORT_LIFE_S
        self._backoff_s = min(max(2 * self._backoff_s, LOOK_S), MAX_BACKOFF_S) if is_short else 0.0
        hung = f", killed since it sent no receipt for {MAX_SILENCE_S:.0f} s" if self._is_hung else ""
        self._fault = f"{how}{hung}, {life_s:.0f} s after its start"
        log.error("paceline: the courier is gone: %s; starting another in %.0f s", self._fault, self._backoff_s)
        self._process = None
        self._start_at_s = now_s + self._backoff_s
        self._has_predecessor = self.sender.resume().counts.has_predecessor
        self._restarts += 1

    def _spawn(self) -> None:
        # A start that fails, out of processes say, is tried again, and not at once.
        self._start_at_s = self._clock() + max(self._backoff_s, LOOK_S)
        has_predecessor = "yes" if self._has_predecessor else "no"
        arguments = (self._endpoint, str(os.getpid()), has_predecessor, self._boot, self.sender.member)
        command = [sys.executable, "-m", "paceline.serving.courier", *arguments]
        env = config.courier_env(self._settings)
        # A process group of its own: `paceline serve` kills the server's group once its leader has ended, and the
        # courier must outlive it to deliver its backlog. It ends by itself when its parent is gone.
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, process_group=0)
        self._started_at_s = self._clock()
        self._silence_s = 0.0
        self._is_hung = False
