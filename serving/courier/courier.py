"""The courier: takes forwards from the scheduler, assembles traces, delivers them, and reports its status."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from ...buffer.board.member_name import MemberName
from ...buffer.board.member_status import MemberStatus
from ...buffer.board.version_board import VersionBoard
from ...buffer.errors import BufferUnavailable, ConfigError, PacelineError, PayloadKeyUnusable
from ...buffer.stream.trace import DraftTrace
from ...buffer.stream.trace_buffer import TraceBuffer
from ..breaker import Breaker
from ..watch.draft_monitor import DraftMonitor
from ..watch.engine_monitor import EngineMonitor
from ..wire.counts import CaptureCounts, DropReason
from ..wire.messages import POLL_S, Message, WireForward
from ..wire.request_forward import RequestForward, TeacherWidth
from .account import BEAT_S, ReplicaAccount
from .assembler import WindowAssembler
from .backlog import Backlog
from .heartbeat import fitted
from .receiver import Source
from .redis_clock import RedisClock
from .replica_counters import ReplicaCounters
from .split import ended_ids, running_ids, split

log = logging.getLogger(__name__)

#: How long a turn waits for messages while a canary drafts on any replica, in place of POLL_S: to count rounds soon.
TRIAL_POLL_S = 0.02
#: The shortest time between two tries to reach a lost Redis.
RETRY_S = 1.0
#: How long a turn may go on appending before it has sent its receipt: a courier without one is taken for hung.
APPENDING_S = 15.0
#: Why the buffer refuses traces for good -> what they are counted as; the first kind that fits.
_REFUSED: Final = (
    (PayloadKeyUnusable, DropReason.PAYLOAD_KEY),
    (ConfigError, DropReason.RETENTION),
    (PacelineError, DropReason.INVALID),
)
TRIAL_BEAT_S = 0.25  # in place of BEAT_S while a canary drafts on any replica, which waits to hear of the others


class Courier:
    """Owns the assembler and the way to the buffer. `run` is the body of its process.

    While the buffer is unavailable, traces wait in a backlog of at most `backlog_bytes` (estimated by their arrays);
    beyond that the oldest are dropped and counted. Delivery resumes by itself.
    """

    def __init__(
        self,
        source: Source,
        teacher: TeacherWidth,
        *,
        assembler: WindowAssembler,
        counts: CaptureCounts,
        breaker: Breaker,
        buffer: TraceBuffer,
        board: VersionBoard,
        name: MemberName,
        backlog_bytes: int,
        monitor: DraftMonitor,
        clock: Callable[[], float] = time.time,
        redis_clock: RedisClock | None = None,
    ) -> None:
        self._source = source
        self._teacher = teacher
        self._assembler = assembler
        self._counts = counts
        self._breaker = breaker
        self._buffer = buffer
        self._board = board
        self._account = ReplicaAccount(board, name, counts)
        self._backlog = Backlog(backlog_bytes)
        self._draft_monitor = monitor
        self._engine_monitor = EngineMonitor()
        self._counters = ReplicaCounters(counts, redis_clock)
        self._clock = clock
        self._lost_at = -RETRY_S  # when Redis did not answer last
        self._beat_at = -BEAT_S  # last beat
        self._buffer_error = ""
        self._refusal = ""  # why the last append was refused; empty where it was not

    def run(self, is_over: Callable[[], bool]) -> None:
        """Work until `is_over`, then close every window and deliver what the buffer takes in one last turn.

        A fault opens the breaker and never ends the courier.
        """
        pause = threading.Event()  # never set
        is_last = False
        while not is_last:
            is_last = is_over()
            try:
                self.turn(0.0 if is_last else self._poll_s)
                if is_last:
                    self._finish()
            except Exception as fault:  # the courier outlives any fault; serving goes on without capture
                log.exception("paceline: courier fault")
                self._breaker.open(f"courier: {type(fault).__name__}: {fault}")
                with suppress(Exception):  # a courier that meets the fault in every turn is not hung
                    self._acknowledge()
                pause.wait(RETRY_S)

    def turn(self, wait_s: float) -> None:
        """One turn: take forwards (waiting up to `wait_s`), assemble, deliver what the buffer takes, beat when due."""
        received = self._source.take(wait_s)
        now = self._clock()
        if reason := self._source.status.capture_reason:
            self._breaker.open(reason)
        for message in received:
            self._lose(message)
            if not self._breaker.is_open:
                self._assemble(message.forwards, now)
        if self._breaker.is_open:
            self._assembler.drop_all(DropReason.CAPTURE_OFF)
        self._engine_monitor.turn(self._source.status)
        self._queue(self._assembler.close_idle(now), now)
        beat_s = TRIAL_BEAT_S if self._is_canary_out else BEAT_S
        is_due = not 0.0 <= now - self._beat_at < beat_s
        if not self._is_waiting(now) and (is_due or not self._account.member):
            self._take_name(now)
        if self._account.member and not self._is_waiting(now):
            self._draft_monitor.turn(now)
            self._deliver(now)
        self._acknowledge()
        if is_due and self._account.member and not self._is_waiting(now):
            self._beat(now)

    def status(self) -> MemberStatus:
        """This replica's status: what the scheduler process said, completed."""
        said = msgspec.structs.replace(self._source.status)
        said.at = self._clock()
        said.traces = self._counts.told()
        said.capture = "off" if self._breaker.is_open else "on"
        said.capture_reason = self._breaker.reason
        said.open = len(self._assembler)
        said.queued = len(self._backlog)
        said.buffer_error = self._buffer_error
        self._draft_monitor.fill(said)
        self._engine_monitor.fill(said)
        self._counters.fill(said, said.at)
        self._account.sign(said)
        return fitted(said)

    @property
    def _poll_s(self) -> float:
        return TRIAL_POLL_S if self._is_canary_out else POLL_S

    @property
    def _is_canary_out(self) -> bool:
        return self._draft_monitor.is_on_trial or self._source.status.is_canary_out

    def _is_waiting(self, now: float) -> bool:
        """Whether Redis was lost a moment ago. A moment in the future is none: a clock may be set back."""
        return 0.0 <= now - self._lost_at < RETRY_S

    def _finish(self) -> None:
        now = self._clock()
        self._take_name(now, may_wait=False)
        self._queue(self._assembler.close_all(now), now)
        self._deliver(now)
        if self._account.member and not self._buffer_error:
            self._beat(now)
            with suppress(BufferUnavailable):
                self._account.release()

    def _take_name(self, now: float, *, may_wait: bool = True) -> None:
        """Under another name a canary would be nobody's: while one is out, an earlier name is left alone."""
        try:
            self._account.take_name(may_move=not self._is_canary_out, may_wait=may_wait)
        except BufferUnavailable as fault:
            self._away(fault, now)
        self._draft_monitor.replica = self._account.member.removeprefix("replica:")

    def _acknowledge(self) -> None:
        self._source.acknowledge(self._counts.told(), self._account.member)

    def _lose(self, message: Message) -> None:
        """Before its forwards are added: they would be found not to continue their windows, which is another reason."""
        self._assembler.lose(message.lost)
        self._counters.lose(message.lost)
        self._assembler.forget(message.ended)
        for reason, requests in message.lost_unnamed.items():
            self._counts.refuse(requests, reason)

    def _assemble(self, forwards: Sequence[WireForward], now: float) -> None:
        for forward in forwards:
            for share in self._split(forward):
                self._draft_monitor.add(share)
                self._counters.add(share, now)
                self._queue(self._assembler.add(share, now), now)

    def _split(self, forward: WireForward) -> list[RequestForward]:
        try:
            return split(forward, self._teacher)
        except Exception as fault:  # noqa: BLE001 - it costs the traces of its requests, and not one token
            self._breaker.note("courier: split", fault)
            running = running_ids(forward)
            self._counters.lose(running)
            self._assembler.lose(dict.fromkeys(running, DropReason.INVALID))
            self._assembler.forget(ended_ids(forward))
            return []

    def _queue(self, traces: list[DraftTrace], now: float) -> None:
        """Put traces into the backlog; what ends in one turn may be many times what it holds, so it is emptied then."""
        for trace in traces:
            self._backlog.add(trace)
            while self._backlog.is_over_full and self._may_append(now):
                self._try_append(now)
            for _ in range(self._backlog.cut()):
                self._counts.drop(DropReason.BACKLOG_FULL)

    def _may_append(self, now: float) -> bool:
        """Within a turn. No receipt goes out meanwhile: it would speak of what was received and is not counted yet."""
        return not self._is_waiting(now) and self._clock() - now < APPENDING_S

    def _try_append(self, now: float) -> None:
        try:
            self._append(self._backlog.head())
        except BufferUnavailable as fault:
            self._away(fault, now)

    def _deliver(self, now: float) -> None:
        try:
            self._counters.look(self._board, self._account.member, now)
            self._account.adopt()
            while self._backlog:
                self._append(self._backlog.head())
                self._acknowledge()  # a long backlog takes a slow Redis minutes
            self._buffer_error = ""
        except BufferUnavailable as fault:
            self._away(fault, now)

    def _append(self, traces: list[DraftTrace]) -> None:
        """Deliver `traces`, the head of the backlog; they leave it once the buffer has taken or refused them."""
        try:
            self._buffer.append(traces)
        except PacelineError as fault:
            if isinstance(fault, BufferUnavailable):
                raise
            self._refuse(traces, fault)
            return
        self._refusal = ""
        self._counts.deliver(len(traces), sum(self._backlog.pop() for _ in traces))

    def _refuse(self, traces: list[DraftTrace], fault: PacelineError) -> None:
        """Drop what would be refused again. The same refusal, of Redis' settings say, is logged once in a row."""
        if str(fault) != self._refusal:
            log.warning("paceline: %d traces cannot be stored: %s", len(traces), fault)
        self._refusal = str(fault)
        reason = next(reason for kind, reason in _REFUSED if isinstance(fault, kind))
        for _ in traces:
            self._backlog.pop()
            self._counts.drop(reason)

    def _beat(self, now: float) -> None:
        self._beat_at = now
        try:
            self._account.beat(self.status())
        except BufferUnavailable as fault:
            self._away(fault, now)

    def _away(self, fault: BufferUnavailable, now: float) -> None:
        if not self._buffer_error:
            log.warning("paceline: buffer unavailable, traces wait in the backlog: %s", fault)
        self._buffer_error = str(fault)
        self._lost_at = now
