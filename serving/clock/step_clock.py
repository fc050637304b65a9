"""The hooks that time every decode step in SGLang's scheduler and count what it commits.

Code that runs once between two forwards finds the processor's caches cold and takes many times as long. So hook bodies
note what only they can see, and sums are made of many notes at once, by the thread that asks for them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...buffer.board.counters import SchedulerCounters
from ..breaker import Breaker
from .busy_time import BusyTime
from .ended_requests import EndedRequests
from .step_cells import StepCells
from .step_meter import StepMeter, Verified

#: Notes after which the scheduler's own thread adds them up, where nobody asks for the sums.
MAX_NOTES = 4096


#: A decode step whose result is being committed: batch size, draft steps (None: the meter saw no launch of it), when,
#: SGLang's requests that had not ended before it, and their output tokens until then. A plain tuple: see above.
_Step = tuple[int, int | None, float, Sequence[Any], int]


class StepClock:
    """Times the steps of one scheduler process, whether or not pacing sits there. Hook bodies for its thread.

    Three faults in a row stop the clock (serving/breaker.py), with the reason in the status; none costs a token.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._breaker = Breaker(what="the step clock")
        self.meter = StepMeter(clock)
        self.verified: Verified | None = None  # the step whose result came last, if its launch was seen
        self._is_started = False
        self._is_idle = True
        self._prefills = 0  # launched, without a result yet
        self._step: _Step | None = None
        self._notes: deque[tuple[Callable[..., object], Any]] = deque()  # what to add up, and with which arguments
        self._adding = threading.Lock()
        self._time = BusyTime(clock())
        self._cells = StepCells()
        self._ended = EndedRequests()

    def start(self) -> None:
        """Its hooks are installed: from here on what it did not see did not happen."""
        self._time = BusyTime(self._clock())
        self._is_started = True  # last: another thread may ask for counters from here on

    @property
    def fault(self) -> str:
        """Why it has stopped; empty while it runs."""
        return self._breaker.reason

    def counters(self) -> SchedulerCounters | None:
        """All but the swaps; None while nothing is counted. Any thread may ask."""
        if not self._is_started or self.fault:
            return None
        with self._adding:
            self._add_up()
            seconds = self._time.seconds(self._clock())
            cells = self._cells.cells()
        return SchedulerCounters(
            steps=cells,
            seconds={kind: round(took_s, 3) for kind, took_s in seconds.items()},
            requests_ended=self._ended.requests,
            requests_counted=self._ended.counted,
            rounds=self._ended.rounds,
            accepted=self._ended.accepted,
        )

    def before_forward(self, _worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        """BEFORE EAGLEWorkerV2.forward_batch_generation; a decode step is launched in `after_activate`."""
        if self._breaker.reason:
            return
        try:
            if batch.forward_mode.is_extend():
                self.meter.interrupt()
                self._prefills += 1
                self._work()
        except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
            self._breaker.note("the launch of a prefill", fault)

    def after_activate(self, _result: Any, worker: Any, batch_size: int, *_: Any, **__: Any) -> None:
        """AFTER EAGLEWorkerV2.activate_step_by_batch, where the number of draft steps of a decode step is settled."""
        if self._breaker.reason or not batch_size:
            return
        try:
            self._launch(batch_size, worker.speculative_num_steps)
        except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
            self._breaker.note("the launch of a step", fault)

    def before_block(self, worker: Any, batch: Any) -> None:
        """BEFORE forward_batch_generation of DFLASH or NGRAM, of a prefill or of a step, which drafts all it can."""
        if self._breaker.reason:
            return
        try:
            if batch.forward_mode.is_extend():
                self.before_forward(worker, batch)
            elif batch.reqs and not batch.forward_mode.is_idle():
                self._launch(len(batch.reqs), worker.speculative_num_draft_tokens - 1)
        except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
            self._breaker.note("the launch of a block", fault)

    def _launch(self, batch_size: int, steps: int) -> None:
        self.meter.launch(batch_size, steps)
        if self._is_idle:
            self._work()

    def before_resolve(self, _processor: Any, _result: Any, batch: Any, *_: Any, **__: Any) -> None:
        """BEFORE SchedulerBatchResultProcessor._resolve_spec_v2_tokens: a result is here, and not yet committed."""
        if self._breaker.reason:
            return
        try:
            if reqs := batch.reqs:
                self.verified = verified = self.meter.verify(len(reqs))
                running = [req for req in reqs if req.finished_reason is None and not req.is_retracted]
                visible = sum([len(req.output_ids) for req in running])
                steps = None if verified is None else verified.steps
                self._step = len(reqs), steps, self.meter.verified_s, running, visible
        except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
            self.verified = None
            self._breaker.note("the result of a step", fault)

    def before_stream(
        self, _streamer: Any, reqs: Any, _return_logprob: Any = False, skip_req: Any = None, *_: Any, **__: Any
    ) -> None:
        """BEFORE SchedulerOutputStreamer.stream_output: all of a result is committed, and no end is answered yet."""
        step = self._step
        self._step = None
        if self._breaker.reason:
            return
        try:
            ended = [req for req in reqs if req.finished_reason is not None and not req.finished_output]
            if ended:
                self._ended.count([req for req in ended if req is not skip_req])
            if step is not None:
                batch_size, steps, at_s, running, before = step
                visible = sum([len(req.output_ids) for req in running]) - (_hidden(ended) if ended else 0)
                self._is_idle = len(running) <= len(ended) and self._is_all_read
                noted = batch_size, steps, at_s, visible - before, len(running), self._is_idle
                self._notes.append((self._add_step, noted))
                if len(self._notes) >= MAX_NOTES:
                    self._relieve()
        except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
            self._breaker.note("the end of a step", fault)

    def after_prefill(self, _result: Any, _processor: Any, batch: Any, *_: Any, **__: Any) -> None:
        """AFTER SchedulerBatchResultProcessor.process_batch_result_prefill."""
        if self._breaker.reason:
            return
        try:
            self._prefills = max(self._prefills - 1, 0)
            is_running = any(req.finished_reason is None for req in batch.reqs)
            self._is_idle = not is_running and self._is_all_read
            self._note(self._add_prefill, (self._clock(), self._is_idle))
        except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
            self._breaker.note("the result of a prefill", fault)

    def spent(self, kind: str, took_s: float) -> None:
        """Something other than a forward held the scheduler until now; in its thread."""
        if self._breaker.reason:
            return
        try:
            self.meter.interrupt()
            self._note(self._time.spend, (kind, took_s))
        except Exception as fault:  # noqa: BLE001 - a swap has been done, and must be answered
            self._breaker.note(kind, fault)

    @property
    def _is_all_read(self) -> bool:
        """Whether no forward is under way."""
        return not (self._prefills or self.meter.in_flight)

    def _work(self) -> None:
        if self._is_idle:
            self._is_idle = False
            self._note(self._time.launch, (self._clock(),))

    def _note(self, add: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._notes.append((add, arguments))

    def _relieve(self) -> None:
        if self._adding.acquire(blocking=False):
            try:
                self._add_up()
            finally:
                self._adding.release()

    def _add_up(self) -> None:
        while self._notes:
            add, arguments = self._notes.popleft()
            add(*arguments)

    def _add_prefill(self, at_s: float, is_idle: bool) -> None:
        self._time.end("prefill", at_s, is_idle=is_idle)

    def _add_step(  # noqa: PLR0917 - notes hold arguments by place: a tuple takes the scheduler the least time
        self, batch_size: int, draft_steps: int | None, at_s: float, tokens: int, live: int, is_idle: bool
    ) -> None:
        took_s = self._time.end("decode", at_s, is_idle=is_idle)
        self._cells.add(batch_size, draft_steps, took_s=took_s, tokens=tokens, requests=live)


def _hidden(ended: Sequence[Any]) -> int:
    """Tokens of requests that came after their end, in the same round: they are never shown."""
    return sum(len(req.output_ids) - req.finished_len for req in ended if req.finished_len is not None)
