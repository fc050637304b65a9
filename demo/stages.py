"""The stages of the demo once its services run: send the traffic, wait for the last traces, read the results."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from ..buffer.board.member_status import LifeSaid
from ..buffer.stream.trace_buffer import TraceBuffer
from ..rig.prompts import Prompt
from ..rig.reader import SpeculatorReader, Swap, drain_check
from ..rig.services import Service
from ..rig.traffic import Served, send
from .lossless import Lossless
from .report import Run, served_by_version
from .view import LiveView
from .view_state import read_state

_REFRESH_S = 0.5
#: Traffic pauses while this many traces, about three learning rounds, wait for the learner. On an idle machine that
#: never happens; on a busy one the run takes longer instead of ending before anything was learned.
MAX_PENDING_TRACES = 96


@dataclass(frozen=True, slots=True)
class Running:
    """The running services, and what reads from them."""

    services: Sequence[Service]
    reader: SpeculatorReader
    buffer: TraceBuffer

    def ensure_running(self) -> None:
        """Raise PacelineError, with the end of its log, when a service has ended."""
        for service in self.services:
            service.ensure_running()


async def serve_traffic(
    running: Running,
    console: Console,
    url: str,
    prompts: Sequence[Prompt],
    *,
    concurrency: int,
    max_tokens: int,
    read_answer: Callable[[Served], str] | None = None,
) -> list[Served]:
    """Send all prompts, show the live view, and return what was served in order of completion.

    With `read_answer`, which gives the line that the view shows of an answer, answers end where the model ends them.
    Raises PacelineError as soon as a service has ended; requests in flight are then cancelled.
    """
    began_s = time.monotonic()
    with LiveView(console) as view:

        def look(done: Sequence[Served]) -> int:
            running.ensure_running()
            state = read_state(
                running.reader,
                done,
                phase=done[-1].prompt.domain if done else "first requests",
                requests_total=len(prompts),
                elapsed_s=time.monotonic() - began_s,
                answer=read_answer(done[-1]) if read_answer and done else "",
            )
            view.show(state)
            return state.traces.pending

        return await watched_traffic(
            url,
            prompts,
            concurrency=concurrency,
            max_tokens=max_tokens,
            ends_at_eos=read_answer is not None,
            look=look,
        )


async def watched_traffic(
    url: str,
    prompts: Sequence[Prompt],
    *,
    concurrency: int,
    max_tokens: int,
    ends_at_eos: bool = False,
    look: Callable[[Sequence[Served]], int],
) -> list[Served]:
    """Send all prompts and return what was served in order of completion.

    `look` gets what was served so far, twice a second and in another thread; it returns how many traces wait for the
    learner. What it raises ends the traffic: requests in flight are then cancelled.
    """
    done: list[Served] = []
    gate = asyncio.Event()
    gate.set()
    sending = asyncio.create_task(
        send(
            url,
            prompts,
            concurrency=concurrency,
            max_tokens=max_tokens,
            is_labelled=True,
            ends_at_eos=ends_at_eos,
            on_served=done.append,
            gate=gate,
        )
    )
    try:
        while not sending.done():
            await asyncio.wait({sending}, timeout=_REFRESH_S)
            pending = await asyncio.to_thread(look, tuple(done))
            gate.set() if pending < MAX_PENDING_TRACES else gate.clear()
        return await sending
    finally:
        sending.cancel()


def settle(
    running: Running, min_new_traces: int, limit_s: float, pause: Callable[[float], object] = time.sleep
) -> None:
    """Wait until every trace is delivered and no further learning round is due, at most `limit_s`.

    Calls `pause` with the seconds between two checks. Raises PacelineError when a service has ended.
    """
    deadline_s = time.monotonic() + limit_s
    reader = running.reader
    running.ensure_running()
    is_drained = drain_check(reader.replica_status)
    while not is_drained() or reader.is_learning(min_new_traces):
        if time.monotonic() >= deadline_s:
            return
        pause(_REFRESH_S)
        running.ensure_running()


def measured(
    running: Running,
    results: Sequence[Served],
    max_tokens: int,
    *,
    mlflow_uri: str,
    seconds: Mapping[str, float],
) -> Run:
    """The results, read from the running services; their lossless check is empty, to be filled in later."""
    reader = running.reader
    life = reader.learner_status().life or LifeSaid()
    traces = reader.traces()
    served = served_by_version(entry.trace for entry in running.buffer.replay(running.buffer.counts().delivered))
    swapped = reader.swaps()
    in_flight = [swap for swap in swapped if swap.running]
    return Run(
        results=results,
        max_tokens=max_tokens,
        versions=reader.versions(served),
        traces=traces,
        replay=(life.identity_equal, life.identity_compared),
        lossless=Lossless(0, ()),
        swapped=swapped,
        swaps=len(in_flight),
        stalls_ms=_known(swap.stall_ms(results) for swap in in_flight),
        quiet_ms=_quiet_ms(in_flight, results),
        seconds=seconds,
        mlflow_uri=mlflow_uri,
    )


def _quiet_ms(swaps: Sequence[Swap], results: Sequence[Served]) -> list[float]:
    """The longest waits for a token half-way between each swap and the next, or the end of the traffic.

    Without the swaps after which no request streamed then.
    """
    ended_at = max((result.done_at for result in results), default=0.0)
    following = [*(swap.at for swap in swaps[1:]), ended_at]
    pairs = zip(swaps, following, strict=True) if swaps else ()
    return _known(swap.quiet_ms(results, next_at) for swap, next_at in pairs)


def _known(waits_ms: Iterable[float | None]) -> list[float]:
    return [wait for wait in waits_ms if wait is not None]
