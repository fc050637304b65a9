"""A learner's heartbeat: its last known status and its counters, also while a learning round runs and between two."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

from ..buffer.board.lease import renewed
from ..buffer.board.member_name import MemberName
from ..buffer.board.member_status import MemberStatus
from ..buffer.board.version_board import VersionBoard
from ..buffer.errors import BufferUnavailable
from ..buffer.plain_text import printable
from ..buffer.stream.trace_buffer import TraceBuffer
from .config import LearnerConfig
from .work_tally import WorkTally

#: A learner that was not heard of for so long is silent; it beats three times as often.
ALIVE_S = 12.0
#: Between two looks at a name that another process may have left a moment ago.
LOOK_S = 1.0
#: Of the fault that ended a learning round; the log has all of it.
_FAULT_CHARS = 300


class Heartbeat:
    """Sends one learner's status. What is not filled in anew stays through idle rounds.

    Several threads may send. Every beat is alive for ALIVE_S, in a learning round no longer than its lease: a killed
    learner is silent then, however long its learning rounds and the time between them are.
    """

    def __init__(self, config: LearnerConfig, board: VersionBoard, buffer: TraceBuffer) -> None:
        self.tally = WorkTally()
        self._name = MemberName(board, f"learner:{config.name}", self.tally.boot)
        self._in_round_s = min(config.round_lease_s, ALIVE_S)
        self._board = board
        self._buffer = buffer
        self._said = MemberStatus(
            kind="idle", why="no learning round has come to its end yet", learner=self.tally.process
        )
        self._lock = threading.Lock()  # a beat with older figures must not come after one with newer ones
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self, fill: Callable[[MemberStatus], object]) -> None:
        """Have news filled in and send all that is known; once this learner has a name. Raises BufferUnavailable."""
        with self._lock:
            fill(self._said)
            self._send(ALIVE_S)

    def stall(self, fault: Exception) -> None:
        """Say, if Redis takes it, that `fault` keeps learning rounds from being started, until one is again.

        Nothing is said in a process that does not keep beating, such as a beat of its own.
        """
        if self._thread is not None:
            with suppress(BufferUnavailable), self._lock:
                self._send(ALIVE_S, _text(fault))

    def fail(self, failure: BaseException) -> None:
        """Count a learning round that `failure` ended, and say so, if Redis answers, until one ends well."""
        self.tally.record_failure()
        with suppress(BufferUnavailable), self._lock:
            self._said.fault = _text(failure)
            self._send(ALIVE_S)

    def at_work(self, kind: str) -> AbstractContextManager[object]:
        """Send that a learning round is at `kind`, again and again while the body runs.

        Raises BufferUnavailable at the first one.
        """
        with self._lock:
            self._said.kind = kind
            self._send(self._in_round_s)
        return nullcontext() if self._thread else renewed(partial(self._beat_again, self._in_round_s), self._in_round_s)

    def keep_beating(self, *, starts_rounds: bool = False) -> None:
        """Beat from a thread of its own, at once and until `end`; a second call does nothing.

        `starts_rounds`: whether this process also sends the messages that start learning rounds, as one alone should.
        """
        if self._thread is None:
            self._said.beat = starts_rounds
            self._thread = threading.Thread(target=self._run, name="paceline-alive", daemon=True)
            self._thread.start()

    def end(self, by_itself: str = "") -> None:
        """Stop the thread and say that this learner ends, or why `by_itself`; blocks for two time-outs of Redis."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(BufferUnavailable), self._lock:
            self._said.left = printable(by_itself[:_FAULT_CHARS])
            self._said.ended = not by_itself
            self._send(ALIVE_S)
            self._name.release()

    def _run(self) -> None:
        while True:
            self._beat_again(ALIVE_S)
            if self._stop.wait(ALIVE_S / 3 if self._name.held else LOOK_S):
                return

    def _beat_again(self, alive_s: float) -> None:
        # Redis may be away for a moment: the learning round itself notices when it needs it.
        with suppress(BufferUnavailable), self._lock:
            self._send(alive_s, self._said.stalled)

    def _send(self, alive_s: float, stalled: str = "") -> None:
        said = self._said
        said.stalled = stalled
        self._name.take(alive_s, may_wait=not (said.ended or said.left))
        if not self._name.held:
            return
        self._name.sign(said)
        said.at = time.time()
        said.work = self.tally.work()
        said.counters = self.tally.counters(self._buffer.counts())
        self._board.beat(self._name.held, said, alive_s)
        self._name.settle()


def _text(fault: BaseException) -> str:
    return printable(f"{type(fault).__name__}: {fault}"[:_FAULT_CHARS])
