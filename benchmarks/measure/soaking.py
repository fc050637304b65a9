"""Swaps a server's draft again and again through its board while requests stream, and samples its memory."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...buffer.board.member_status import SwapSaid, TracesSaid
from ...buffer.board.version import VersionState
from ...buffer.errors import BufferUnavailable
from ...policies.acceptance import Tally
from ...rig.progress import Report
from ...rig.prompts import Prompt
from ...rig.traffic import Served, send
from .measured_server import BY, DraftWeights, MeasuredServer, under_new_ids
from .processes import Vitals, child_named, vitals

WARM_UP_S = 10.0  # of traffic before the first swap
SAMPLE_S = 1.0
PATIENCE_S = 60.0  # for the next swap to be reported
#: Versions made live ahead of what the server has reported; it reports its newest 64 every second or two.
AHEAD = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakPlan:
    """How hard and how long."""

    swaps: int
    gap_ms: int
    concurrency: int
    max_tokens: int = 96
    prompts: int = 64


@dataclass(frozen=True, slots=True)
class SwapSeen:
    """One swap as the replica reported it."""

    number: int
    at: float  # unix seconds, when the commit was done
    commit_ms: float
    stage_ms: float

    @property
    def window(self) -> tuple[float, float]:
        """From the staging to the commit, unix seconds."""
        return self.at - (self.commit_ms + self.stage_ms) / 1000.0, self.at


@dataclass(frozen=True, slots=True)
class Sample:
    """What both processes held after a number of swaps."""

    swaps: int
    at: float  # unix seconds
    scheduler: Vitals
    courier: Vitals


@dataclass(slots=True, kw_only=True)
class Soak:
    """Everything that was recorded."""

    plan: SoakPlan
    began: float = field(default_factory=time.time)
    samples: list[Sample] = field(default_factory=list)
    swaps: dict[int, SwapSeen] = field(default_factory=dict)  # by version number
    made: list[tuple[int, float, float]] = field(default_factory=list)  # number, live at, seconds to write it
    requests: list[Tally] = field(default_factory=list)  # accepted drafts and rounds, in the order they ended
    waits: list[np.ndarray] = field(default_factory=list)  # [n, 2]: a chunk, and the next one of the same request
    disturbed: list[str] = field(default_factory=list)  # requests that failed, were aborted or retracted
    traces: TracesSaid = field(default_factory=TracesSaid)  # as the replica said last
    passed_over: int = 0
    unanswered: int = 0  # calls of this benchmark that Redis did not answer in time

    def take(self, served: Served, max_tokens: int) -> None:
        """Add one request that has ended."""
        if served.failure or served.finish != "length" or served.retractions or len(served.output_ids) != max_tokens:
            outcome = f"{served.finish!r}, {served.retractions} retractions {served.failure}"
            self.disturbed.append(f"{served.prompt.request_id}: {len(served.output_ids)} tokens, {outcome}")
        times = np.array([arrival.at for arrival in served.arrivals])
        self.waits.append(np.stack([times[:-1], times[1:]], axis=1))
        self.requests.append(served.tally)

    def read(self, reported: Sequence[SwapSaid]) -> None:
        """Add the swaps that a heartbeat reports."""
        for swap in reported:
            if swap.at >= self.began:
                seen = SwapSeen(swap.number, swap.at, swap.commit_ms, swap.stage_ms)
                self.swaps.setdefault(seen.number, seen)


def soak(
    server: MeasuredServer,
    *,
    server_pid: int,
    drafts: Sequence[Path],
    prompts: Sequence[Prompt],
    plan: SoakPlan,
    report: Report,
) -> Soak:
    """Blocks until `plan.swaps` swaps are done; exits when the server stops swapping or its traces do not add up."""
    seen = Soak(plan=plan)
    over = threading.Event()
    traffic = threading.Thread(target=stream, args=(server, prompts, plan, seen, over))
    traffic.start()
    try:
        over.wait(WARM_UP_S)
        swap_all(server, server_pid, drafts, seen=seen, report=report)
    finally:
        over.set()
        traffic.join()
    last = server.drained()
    seen.traces = last.account
    seen.read(last.swaps)
    return seen


def stream(
    server: MeasuredServer, prompts: Sequence[Prompt], *, plan: SoakPlan, seen: Soak, over: threading.Event
) -> None:
    """Send requests, `plan.concurrency` at a time, until `over` is set."""

    def endless() -> Iterator[Prompt]:
        while not over.is_set():
            for prompt in under_new_ids(prompts, "soak"):
                if over.is_set():
                    return
                yield prompt

    sending = send(
        server.url,
        endless(),
        concurrency=plan.concurrency,
        max_tokens=plan.max_tokens,
        on_served=lambda served: seen.take(served, plan.max_tokens),
    )
    asyncio.run(sending)


def swap_all(server: MeasuredServer, server_pid: int, drafts: Sequence[Path], *, seen: Soak, report: Report) -> None:
    """Make versions live, at least `plan.gap_ms` apart, until enough of them were swapped in."""
    scheduler = child_named(server_pid, "sglang::scheduler")
    courier = child_named(server_pid, "paceline.serving.courier")
    weights = [DraftWeights.of(draft) for draft in drafts]
    sampled = 0.0
    pause = threading.Event()
    plan = seen.plan
    for turn in itertools.count(1):
        began = time.monotonic()
        try:
            if began - sampled >= SAMPLE_S:
                look(server, seen)
                sampled = began
                seen.samples.append(Sample(len(seen.swaps), time.time(), vitals(scheduler), vitals(courier)))
                report(len(seen.swaps) / plan.swaps, f"{len(seen.swaps)} of {plan.swaps}")
            if len(seen.swaps) >= plan.swaps:
                return
            if len(seen.made) - len(seen.swaps) - seen.passed_over < min(AHEAD, plan.swaps - len(seen.swaps)):
                make_live(server, weights[turn % len(weights)], seen)
        except BufferUnavailable:
            seen.unanswered += 1  # the version may be on the board all the same: the server reports which one drafts
        pause.wait(max(0.0, plan.gap_ms / 1000.0 - (time.monotonic() - began)))


def make_live(server: MeasuredServer, weights: DraftWeights, seen: Soak) -> None:
    """Register the next version and make it live, which retires the one before it."""
    began = time.monotonic()
    number = server.register(weights, "soak")
    server.board.move(number, VersionState.LIVE, BY, "the next one")
    seen.made.append((number, time.time(), time.monotonic() - began))


def look(server: MeasuredServer, seen: Soak) -> None:
    """Read what was swapped in; a version older than one of these, and not among them, was passed over."""
    seen.read(server.reader.replica_status().swaps)
    newest = max(seen.swaps, default=-1)
    seen.passed_over = sum(number < newest and number not in seen.swaps for number, *_ in seen.made)
    waiting = [at for number, at, _ in seen.made if number > newest]
    if waiting and time.time() - waiting[0] > PATIENCE_S:
        raise SystemExit(
            f"no swap since version {newest} for {PATIENCE_S:.0f} s; last status {server.reader.replica_status()}"
        )
