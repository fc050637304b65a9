"""What a learner process has done since it started, for its heartbeat: rounds, verdicts, and where its time went.

The thread that learns writes; the thread that beats reads, also in the middle of a learning round.
"""

import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from ..buffer.board.counters import Counters, LearnerCounters
from ..buffer.board.member_status import ProcessSaid, WorkSaid
from ..buffer.code_version import code_version
from ..buffer.stream.trace_buffer import BufferCounts

#: The phase between two learning rounds.
IDLE = "idle"
#: Counted among the verdicts: learning rounds that an exception ended.
FAILED = "failed"


class WorkTally:
    """Counts since the process started; `clock` measures phases and only its differences matter."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.boot = uuid.uuid4().hex[:16]
        self._started_at = time.time()
        self.process = ProcessSaid(
            boot=self.boot, started_at=round(self._started_at, 3), host=socket.gethostname(), paceline=code_version()
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._charged = clock()
        self._seconds: dict[str, float] = {}
        self._verdicts: Counter[str] = Counter()
        self._rounds = self._rests = self._drifts = self._optimiser_steps = 0
        self._unstored_checkpoints = 0
        self._drifted_at: float | None = None
        self._work = WorkSaid(phase=IDLE, phase_s=0.0)  # the time is filled in when it is told

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the time of the body to `name`, and no longer to the phase around it."""
        before = self._enter(name)
        try:
            yield
        finally:
            self._enter(before)
            with self._lock:
                self._work = WorkSaid(phase=before, phase_s=0.0)

    def step(self, step: int, steps: int) -> None:
        """Optimiser step `step` of `steps` of the block being learnt has ended."""
        with self._lock:
            self._work.step = step
            self._work.steps = steps

    def block(self, block: int, blocks: int) -> None:
        """Block `block` of `blocks` of the claim is being learnt."""
        with self._lock:
            self._work = WorkSaid(phase=self._work.phase, phase_s=0.0, block=block, blocks=blocks)

    def record_learning(self, optimiser_steps: int, verdict: str | None) -> None:
        """Count a learning round that trained; None: nothing was there to judge."""
        with self._lock:
            self._rounds += 1
            self._optimiser_steps += optimiser_steps
            if verdict is not None:
                self._verdicts[verdict] += 1

    def record_rest(self) -> None:
        """Count a learning round that kept its traces and trained nothing."""
        with self._lock:
            self._rests += 1

    def record_drift(self, at: float) -> None:
        """Count a rest that ended at unix second `at`, since what is served had changed."""
        with self._lock:
            self._drifts = self._drifts + 1
            self._drifted_at = at

    def record_unstored_checkpoint(self) -> None:
        """Count a checkpoint that the store did not take."""
        with self._lock:
            self._unstored_checkpoints += 1

    def record_failure(self) -> None:
        """Count a learning round that an exception ended."""
        with self._lock:
            self._verdicts[FAILED] += 1

    def work(self) -> WorkSaid:
        """What it is doing now, for the heartbeat."""
        with self._lock:
            return msgspec.structs.replace(self._work, phase_s=round(self._clock() - self._began, 3))

    def counters(self, counts: BufferCounts) -> Counters:
        """What was done until now, beside what is in the buffer."""
        with self._lock:
            self._charge()
            learnt = LearnerCounters(
                rounds=self._rounds,
                rests=self._rests,
                drifts=self._drifts,
                drifted_at=self._drifted_at,
                optimiser_steps=self._optimiser_steps,
                unstored_checkpoints=self._unstored_checkpoints,
                verdicts=dict(self._verdicts),
                seconds={name: round(spent, 3) for name, spent in self._seconds.items()},
                process_cpu_s=round(time.process_time(), 3),
                is_busy=self._work.phase != IDLE,
                delivered=counts.delivered,
                acked=dict(counts.acked),
                trimmed=counts.trimmed,
                dead_lettered=counts.dead_lettered,
                pending=counts.pending,
                oldest_pending_s=counts.oldest_pending_s,
                oldest_kept_s=counts.oldest_kept_s,
                entries=counts.entries,
                bytes=counts.bytes,
                max_bytes=counts.max_bytes,
            )
            return Counters(at=time.time(), boot=self.boot, started_at=self._started_at, learner=learnt)

    def _enter(self, name: str) -> str:
        """Begin a phase; return the one that it ends."""
        with self._lock:
            self._charge()
            before = self._work.phase
            self._work.phase = name
            self._began = self._charged
            return before

    def _charge(self) -> None:
        """Add the time until now to the phase that runs; with the lock held."""
        now = self._clock()
        phase = self._work.phase
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._charged
        self._charged = now
