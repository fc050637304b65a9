"""What the demo does once its services are up: send the traffic, wait for the last traces, read what was measured."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from ..buffer.base import TraceBuffer
from ..dashboards.tables import as_int
from ..rig.drained import drained
from ..rig.prompts import Prompt
from ..rig.services import Service
from ..rig.traffic import Served, send
from .lossless import Lossless
from .report import Run, served_by_version
from .view import LiveView
from .watch import Watch

_REFRESH_S = 0.5
#: Traffic waits while this many traces wait for the learner, about three rounds. On a quiet machine it never does; on a
#: busy one the run takes longer instead of ending before anything was learnt.
MAX_PENDING_TRACES = 96


@dataclass(frozen=True, slots=True)
class Running:
    """The services that are up, and the two ways to see what they do."""

    services: Sequence[Service]
    watch: Watch
    buffer: TraceBuffer

    def ensure(self) -> None:
        """Return when every service lives. Raises PacelineError with the end of its log for one that has ended."""
        for service in self.services:
            service.ensure_running()


async def serve_traffic(
    running: Running, console: Console, url: str, prompts: Sequence[Prompt], *, concurrency: int, max_tokens: int
) -> list[Served]:
    """Send all prompts and show the live view meanwhile; return what was served, in order of completion.

    Raises PacelineError as soon as a service has ended; requests in flight are then given up.
    """
    done: list[Served] = []
    gate = asyncio.Event()
    gate.set()
    sending = asyncio.create_task(
        send(url, prompts, concurrency=concurrency, max_tokens=max_tokens, on_served=done.append, gate=gate)
    )
    try:
        with LiveView(console) as view:
            while not sending.done():
                await asyncio.wait({sending}, timeout=_REFRESH_S)
                running.ensure()
                phase = done[-1].prompt.domain if done else "first requests"
                state = await asyncio.to_thread(running.watch.state, phase, tuple(done), len(prompts))
                view.show(state)
                gate.set() if state.traces.pending < MAX_PENDING_TRACES else gate.clear()
        return await sending
    finally:
        sending.cancel()


def settle(
    running: Running, min_new_traces: int, limit_s: float, pause: Callable[[float], object] = time.sleep
) -> None:
    """Wait until every trace is delivered and no further round is due, at most `limit_s`, looking between pauses.

    Raises PacelineError when a service has ended.
    """
    deadline_s, watch = time.monotonic() + limit_s, running.watch
    running.ensure()
    is_drained = drained(watch.replica)
    while not is_drained() or watch.is_learning(min_new_traces):
        if time.monotonic() >= deadline_s:
            return
        pause(_REFRESH_S)
        running.ensure()


def measured(
    running: Running,
    results: Sequence[Served],
    max_tokens: int,
    *,
    mlflow_uri: str,
    seconds: Mapping[str, float],
) -> Run:
    """The run as far as the running services know it: the lossless check is still to come."""
    watch = running.watch
    learner, traces = watch.learner(), watch.traces()
    served = served_by_version(entry.trace for entry in running.buffer.replay(max_traces=traces.delivered))
    in_flight = [swap for swap in watch.swaps() if swap.running]
    return Run(
        results=results,
        max_tokens=max_tokens,
        versions=watch.versions(served),
        traces=traces,
        replay=(as_int(learner, "identity_equal"), as_int(learner, "identity_compared")),
        lossless=Lossless(0, ()),
        swaps=len(in_flight),
        stalls_ms=[swap.stall_ms(results) for swap in in_flight],
        seconds=seconds,
        mlflow_uri=mlflow_uri,
    )
