"""The hooks that time every decode step in SGLang's scheduler and count what it commits."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...buffer.counters import SchedulerCounters
from ..breaker import Breaker
from .busy_time import BusyTime
from .ended_requests import EndedRequests
from .step_cells import StepCells
from .step_meter import StepMeter, Verified


@dataclass(frozen=True, slots=True)
class _Step:
    """A decode step whose result is being committed."""

    batch_size: int
    running: Sequence[Any]  # SGLang's requests that had not ended before it
    visible_before: int  # their output tokens, all together
    draft_steps: int | None  # None: the meter saw no launch of it
    at_s: float


class StepClock:
    """Times the steps of one scheduler process, whether or not pacing sits there. Hook bodies for its thread.

    Three faults in a row stop the clock (serving/breaker.py), with the reason in the status; none costs a token.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._breaker = clock, Breaker(what="the step clock")
        self.meter = StepMeter(clock)
        self.verified: Verified | None = None  # the step whose result came last, if its launch was seen
        self._began_s: float | None = None  # None: its hooks are not installed
        self._time = BusyTime(clock())
        self._cells, self._ended = StepCells(), EndedRequests()
        self._step: _Step | None = None
        guard = self._breaker.guard
        self.before_forward, self.after_activate = guard(self._before_forward), guard(self._after_activate)
        self.before_resolve, self.before_stream = guard(self._before_resolve), guard(self._before_stream)
        self.after_prefill, self.spent = guard(self._after_prefill), guard(self._spent)

    def start(self) -> None:
        """Its hooks are installed: from here on what it did not see did not happen."""
        self._began_s = self._clock()
        self._time = BusyTime(self._began_s)

    @property
    def fault(self) -> str:
        """Why it has stopped; empty while it runs."""
        return self._breaker.reason

    def counters(self) -> SchedulerCounters | None:
        """All but the swaps; None while nothing is counted. Any thread may ask."""
        if self._began_s is None or self.fault:
            return None
        seconds = self._time.seconds(self._clock())
        return SchedulerCounters(
            steps=self._cells.cells(),
            seconds={kind: round(took_s, 3) for kind, took_s in seconds.items()},
            requests_ended=self._ended.requests,
            rounds=self._ended.rounds,
            accepted=self._ended.accepted,
        )

    def _before_forward(self, _worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        """BEFORE EAGLEWorkerV2.forward_batch_generation; a decode step is launched in `_after_activate`."""
        if batch.forward_mode.is_extend():
            self.meter.interrupt()
            self._time.launch(self._clock())

    def _after_activate(self, _result: Any, worker: Any, batch_size: int, *_: Any, **__: Any) -> None:
        """AFTER EAGLEWorkerV2.activate_step_by_batch, where the number of draft steps of a decode step is settled."""
        if batch_size:
            self.meter.launch(batch_size, worker.speculative_num_steps)
            self._time.launch(self._clock())

    def _before_resolve(self, _processor: Any, _result: Any, batch: Any, *_: Any, **__: Any) -> None:
        """BEFORE SchedulerBatchResultProcessor._resolve_spec_v2_tokens: a result is here, and not yet committed."""
        reqs = batch.reqs
        if not reqs:
            return
        self.verified = verified = self.meter.verify(len(reqs))
        running = [req for req in reqs if req.finished_reason is None and not req.is_retracted]
        visible = sum([len(req.output_ids) for req in running])
        steps = None if verified is None else verified.steps
        self._step = _Step(len(reqs), running, visible, steps, self.meter.verified_s)

    def _before_stream(
        self, _streamer: Any, reqs: Any, _return_logprob: Any = False, skip_req: Any = None, *_: Any, **__: Any
    ) -> None:
        """BEFORE SchedulerOutputStreamer.stream_output: all of a result is committed, and no end is answered yet."""
        ended = self._ended.look(reqs, skip_req)
        step, self._step = self._step, None
        if step is not None:
            self._add(step, ended)

    def _after_prefill(self, _result: Any, _processor: Any, batch: Any, *_: Any, **__: Any) -> None:
        """AFTER SchedulerBatchResultProcessor.process_batch_result_prefill."""
        is_running = any(req.finished_reason is None for req in batch.reqs)
        self._time.end("prefill", self._clock(), is_running=is_running)

    def _spent(self, kind: str, took_s: float) -> None:
        """Something other than a forward held the scheduler until now."""
        self.meter.interrupt()
        self._time.spend(kind, took_s)

    def _add(self, step: _Step, ended: Sequence[Any]) -> None:
        live = len(step.running)
        took_s = self._time.end("decode", step.at_s, is_running=live > len(ended))
        visible = sum([len(req.output_ids) for req in step.running])
        # What came after the end of a request, in the same round, is never shown.
        hidden = sum(len(req.output_ids) - req.finished_len for req in ended if req.finished_len is not None)
        self._cells.add(step.batch_size, step.draft_steps, took_s, visible - step.visible_before - hidden, live)
