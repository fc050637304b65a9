"""One run: a stream served chunk by chunk by the draft as it is, and learned from after each measurement.

Serving is replayed: which drafts are accepted is read off the committed tokens, exactly for greedy traffic and without
bias under target_only, since the text does not depend on the draft. Under rejection sampling what is accepted is an
expectation, without bias either (policies/rejection.py). What the target drew once stays drawn, so a run is one sample
of both the stream and the target's sampling; seeds differ in the first.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from ...buffer.trace import DraftTrace
from ...learner.judging import paired_replay
from ...learner.model.draft_io import load_draft, load_target_embedding
from ...learner.model.eagle3 import Eagle3Draft
from ...policies.acceptance import Tally
from ...policies.objectives.baselines.table import BENCH_OBJECTIVES
from ...rig.trace_file import read_card, read_traces
from .lab import Lab
from .programme import Job
from .rows import REPLAY_TRACES, Rate
from .stream import domain_of, make_stream, with_top_k
from .training.trainer import BenchTrainer


@dataclass(frozen=True, slots=True)
class Point:
    """What the draft would have had accepted on one chunk, and what it had cost until then."""

    end: int  # traces seen with this chunk
    tallies: Mapping[str, Tally]  # by domain
    steps: int  # optimiser steps before this chunk
    seconds: float  # of training before this chunk

    @property
    def accepted(self) -> float:
        """Accepted drafts per round, without the bonus token."""
        return sum(self.tallies.values(), Tally()).accept_length - 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """A job and its curve."""

    job: Job
    shift_at: int
    points: Sequence[Point]
    steps: int  # of the whole run
    seconds: float


@dataclass(slots=True)
class _Cost:
    steps: int = 0
    seconds: float = 0.0
    points: list[Point] = field(default_factory=list)


def use_one_thread() -> None:
    """Keep runs on one machine from sharing cores; called once in every process that runs jobs."""
    torch.set_num_threads(1)


def run_job(lab: Lab, job: Job) -> Run:
    """Serve and learn one stream; tens of seconds. The first job of a setting loads its traces; they stay in memory."""
    stream = make_stream(_traces(lab.trace_file(job.setting)), lab.shifted, job.sizes, job.seed, tuning=job.tuning)
    cost, plan = _Cost(), job.row.plan(job.setting.steps, job.seed, job.rate)
    proposer = _proposer(lab, job) if BENCH_OBJECTIVES[plan.objective].needs_verdicts else None
    trainer = BenchTrainer(_initial(lab, job), plan, proposer)
    replay_buffer: deque[DraftTrace] = deque(maxlen=REPLAY_TRACES)
    seen = 0
    for chunk in stream.chunks(job.row.cadence or job.sizes.cadence):
        seen += len(chunk)
        cost.points.append(Point(seen, tallies(trainer.draft, chunk, job.setting.steps), cost.steps, cost.seconds))
        if job.row.rate is not Rate.NONE:
            fresh = [with_top_k(trace, job.row.top_k) for trace in chunk]
            fit = trainer.fit(fresh, list(replay_buffer) if plan.replay_share else [])
            cost.steps, cost.seconds = cost.steps + fit.steps, cost.seconds + fit.seconds
            replay_buffer.extend(fresh)
    return Run(job, stream.shift_at, tuple(cost.points), cost.steps, cost.seconds)


def tallies(draft: Eagle3Draft, traces: Sequence[DraftTrace], steps: int) -> dict[str, Tally]:
    """By domain, what `draft` would have had accepted of traces that replay can score; changes nothing."""
    by_trace, found = paired_replay.tallies(draft, traces, steps), dict[str, Tally]()
    for trace in traces:
        domain = domain_of(trace)
        found[domain] = found.get(domain, Tally()) + by_trace[trace.trace_id]
    return found


@cache
def _traces(path: Path) -> tuple[DraftTrace, ...]:
    return tuple(read_traces(path))


def _initial(lab: Lab, job: Job) -> Eagle3Draft:
    """Warm: the one head; cold: another random one for every seed, the same for every row."""
    folder = lab.warm_head if job.start == "warm" else lab.random_head(job.seed)
    return load_draft(folder, load_target_embedding(lab.target.folder)).to(lab.device)


def _proposer(lab: Lab, job: Job) -> Eagle3Draft:
    head = Path(read_card(lab.trace_file(job.setting))["head"])
    return load_draft(head, load_target_embedding(lab.target.folder)).to(lab.device)
