"""What the readings cost: the step clock's hooks in the scheduler thread, and the making of a heartbeat in the courier.

A decode step is acted: work that leaves the processor's caches cold, as a forward does, then the functions that the
clock hooks, with the clock's hooks around them or not. Steps with and without hooks alternate in random order, and the
ratio of their times is paired. The hooks are also timed by themselves within such steps, since a share of a percent
drowns in a shared machine's noise; and in steps without work, one right after the other, where caches are warm: a
scheduler that spends its steps in Python, while a GPU works, is somewhere in between. The heartbeat has as many drafts,
labels and kinds of sampling as are told apart.

    python -m paceline.benchmarks.readings_cost [--batches 1 8 64 256] [--rounds 20] [--steps 25] [--step-ms 10]
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from ..buffer.counters import COUNTERS, MAX_DRAFTS, MAX_LABELS, Counters, as_json
from ..buffer.trace import FeatureDtype, Sampling, VerdictRule
from ..rig.ratio import ratio
from ..serving.clock.step_clock import StepClock
from ..serving.courier.heartbeat import fitted
from ..serving.courier.replica_counters import ReplicaCounters
from ..serving.wire.counts import CaptureCounts
from ..serving.wire.request_forward import NO_FEATURES, Commit, RequestFacts, RequestPrefill, RequestVerify
from .measure.command_line import benchmark_parser
from .measure.paired import in_rounds

STEPS, ACCEPTED = 3, 2
#: Larger than a processor's caches, so that reading it leaves nothing else in them.
SWEPT_BYTES = 64 << 20
SAMPLINGS = (Sampling(), Sampling(temperature=0.7), Sampling(temperature=0.7, edited=True))
BEATS, WARM_STEPS = 200, 2000
BEAT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(slots=True, eq=False)
class Req:
    """What the hooks read of one of SGLang's requests."""

    output_ids: list[int] = field(default_factory=list)
    finished_reason: object = None
    finished_len: int | None = None
    finished_output: bool = False
    is_retracted: bool = False
    spec_verify_ct: int = 0
    spec_num_correct_drafts: int = 0


class ActedStep:
    """One decode step of `batch` requests, of which none ends; `clock` None: nothing is hooked."""

    def __init__(self, batch: int, clock: StepClock | None, step_ms: float) -> None:
        self._reqs = [Req() for _ in range(batch)]
        self._batch = SimpleNamespace(reqs=self._reqs, forward_mode=SimpleNamespace(is_extend=lambda: False))
        self._worker, self._step_s = SimpleNamespace(speculative_num_steps=STEPS), step_ms / 1e3
        self._swept, self.hooks_s = np.ones(SWEPT_BYTES // 8), 0.0
        hooks: Sequence[Any] = [_nothing] * 4
        if clock is not None:
            clock.start()
            hooks = clock.before_forward, clock.after_activate, clock.before_resolve, clock.before_stream
        self._forward, self._activate, self._resolve, self._stream = hooks

    def run(self) -> float:
        """Seconds of one step; `hooks_s` has those of its hooks."""
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < self._step_s:
            self._swept.sum()
        self.hooks_s = self._timed(self._forward, self._worker, self._batch)
        self.hooks_s += self._timed(self._activate, None, self._worker, len(self._reqs))
        self.hooks_s += self._timed(self._resolve, None, None, self._batch)
        for req in self._reqs:
            req.output_ids.extend([7] * (ACCEPTED + 1))
        self.hooks_s += self._timed(self._stream, None, self._reqs, False)
        return time.perf_counter() - began_s

    def _timed(self, hook: Callable[..., object], *arguments: object) -> float:
        began_s = time.perf_counter()
        hook(*arguments)
        return time.perf_counter() - began_s


def _nothing(*_: object) -> None:
    """In place of a hook."""


def main() -> None:
    """Measure and print."""
    options = parse()
    print(f"steps of {options.step_ms:g} ms; hooks per step: median and 99th percentile")
    print("| batch | hooks, us | 99 % | share of a step | caches warm, us | step with hooks over without |")
    print("|---|---|---|---|---|---|")
    for batch in options.batches:
        print(line(batch, options), flush=True)
    made_ms, size = beats()
    print(f"heartbeat: {statistics.median(made_ms):.2f} ms to make (at most {max(made_ms):.2f}), {size:,} bytes")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("readings_cost", __doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256], help="batch sizes (1 to 256)")
    parser.add_argument("--rounds", type=int, default=20, help="pairs of runs per batch size (20)")
    parser.add_argument("--steps", type=int, default=25, help="decode steps of a run (25)")
    parser.add_argument("--step-ms", type=float, default=10.0, help="milliseconds of a step (10)")
    return parser.parse_args()


def line(batch: int, options: argparse.Namespace) -> str:
    """One row of the table."""
    hooked, plain = (ActedStep(batch, clock, options.step_ms) for clock in (StepClock(), None))
    nothing: list[float] = []
    hooks: list[float] = []
    ways = {
        "with": lambda: run(hooked, options.steps, hooks),
        "without": lambda: run(plain, options.steps, nothing),
    }
    figures = in_rounds(ways, options.rounds, seed=0)
    # What it takes to time a hook that does nothing is no cost of the hooks.
    own_us = [1e6 * (took_s - statistics.median(nothing)) for took_s in hooks]
    median, high = statistics.median(own_us), float(np.percentile(own_us, 99))
    share = median / (1e3 * options.step_ms)
    paired = ratio(figures["with"], figures["without"]).text()
    return f"| {batch} | {median:.1f} | {high:.1f} | {share:.3%} | {warm_us(batch):.1f} | {paired} |"


def warm_us(batch: int) -> float:
    """Median microseconds of the hooks in steps without work."""
    hooks: list[float] = []
    run(ActedStep(batch, StepClock(), 0.0), WARM_STEPS, hooks)
    return 1e6 * statistics.median(hooks)


def run(step: ActedStep, steps: int, hooks: list[float]) -> float:
    """Mean seconds of some steps; those of their hooks are added to `hooks`."""
    took_s = []
    for _ in range(steps):
        took_s.append(step.run())
        hooks.append(step.hooks_s)
    return statistics.fmean(took_s)


def beats() -> tuple[list[float], int]:
    """Milliseconds to make a heartbeat's counters, and to make it fit; and its size in bytes."""
    counters = ReplicaCounters(CaptureCounts())
    counters.look(SimpleNamespace(last_status=lambda _member: {}), "replica:r", 0.0)  # asked once
    for draft in range(MAX_DRAFTS + 2):
        for label in range(MAX_LABELS):
            for sampling in SAMPLINGS:
                serve(counters, f"{draft}-{label}-{id(sampling)}", draft, label, sampling)
    clock = StepClock()
    for batch in BEAT_BATCHES:
        ActedStep(batch, clock, step_ms=0.0).run()
    reported = {COUNTERS: as_json(Counters(at=0.0, boot="boot", scheduler=clock.counters()))}
    made_ms = []
    for _ in range(BEATS):
        began_s = time.perf_counter()
        beat = msgspec.json.encode(fitted(counters.status(1.0, reported)))
        made_ms.append(1e3 * (time.perf_counter() - began_s))
    return made_ms, len(beat)


def serve(counters: ReplicaCounters, name: str, draft: int, label: int, sampling: Sampling) -> None:
    """One request of one round."""
    facts = RequestFacts("", sampling, VerdictRule.GREEDY, f"label-{label}")
    ids, commit = np.zeros(STEPS, np.int32), Commit(1, (7,), "stop")
    rows = np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float16), NO_FEATURES, FeatureDtype.FLOAT32
    counters.add(RequestPrefill(name, draft, "0", facts, 0, ids, *rows[2:], Commit(0, (7,), "")), 0.0)
    counters.add(RequestVerify(name, draft, "0", 3, 7, ids, ACCEPTED, *rows, commit), 0.0)


if __name__ == "__main__":
    main()
