"""One run: a stream served chunk by chunk by the draft as it is, and learned from after each measurement.

Serving is replayed: which drafts are accepted is read off the committed tokens, exactly for greedy traffic and without
bias under target_only, since the text does not depend on the draft. Under rejection sampling what is accepted is an
expectation, without bias either (policies/rejection.py). What the target drew once stays drawn, so a run is one sample
of both the stream and the target's sampling; seeds differ in the first.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from ...buffer.settings.table import BY_NAME
from ...buffer.stream.trace import DraftTrace
from ...learner.judging import paired_replay
from ...learner.model.draft_io import load_draft, load_target_embedding
from ...learner.model.eagle3 import Eagle3Draft
from ...learner.training.trainer import DraftTrainer
from ...policies.acceptance import Tally
from ...rig.trace_file import read_traces
from .aurora import AuroraTrainer
from .lab import Lab
from .programme import Job, Rate
from .stream import domain_of, make_stream

#: Traces of the replay buffer, unless a learner is told otherwise.
REPLAY_TRACES: int = BY_NAME["REPLAY_TRACES"].default


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A job and its curve."""

    job: Job
    shift_at: int
    points: Sequence[Point]
    steps: int  # of the whole run
    seconds: float


class _Trainer:
    """Either way of training, and what it has cost."""

    def __init__(self, draft: Eagle3Draft, job: Job) -> None:
        plan = job.row.training_plan(job.setting.steps, job.seed)
        recipe = job.row.training_recipe(job.rate)
        self.draft = draft
        self.steps = 0
        self.seconds = 0.0
        self._aurora = AuroraTrainer(draft, plan, recipe) if job.row.is_aurora else None
        self._own = DraftTrainer(draft, plan, recipe=recipe)

    def fit(self, fresh: Sequence[DraftTrace], replay: Sequence[DraftTrace]) -> None:
        if self._aurora is not None:
            steps, seconds = self._aurora.fit(fresh, replay)
        else:
            report = self._own.fit(fresh, replay)
            steps = report.steps
            seconds = report.seconds
        self.steps += steps
        self.seconds += seconds


def use_one_thread() -> None:
    """Keep runs on one machine from sharing cores; called once in every process that runs jobs."""
    torch.set_num_threads(1)


def run_job(lab: Lab, job: Job) -> Run:
    """Serve and learn one stream; tens of seconds. The first job of a setting loads its traces; they stay in memory."""
    stream = make_stream(_traces(lab.trace_file(job.setting)), lab.shifted, job.sizes, job.seed, tuning=job.tuning)
    trainer = _Trainer(_initial(lab, job), job)
    replay_buffer: deque[DraftTrace] = deque(maxlen=REPLAY_TRACES)
    replays = job.row.training_recipe(job.rate).replay_share > 0.0
    points = list[Point]()
    seen = 0
    for chunk in stream.chunks(job.row.cadence or job.sizes.cadence):
        seen += len(chunk)
        points.append(Point(seen, tallies(trainer.draft, chunk, job.setting.steps), trainer.steps, trainer.seconds))
        if job.row.rate is not Rate.NONE:
            trainer.fit(chunk, list(replay_buffer) if replays else [])
            replay_buffer.extend(chunk)
    return Run(job=job, shift_at=stream.shift_at, points=tuple(points), steps=trainer.steps, seconds=trainer.seconds)


def tallies(draft: Eagle3Draft, traces: Sequence[DraftTrace], steps: int) -> dict[str, Tally]:
    """By domain, what `draft` would have had accepted of traces that replay can score; changes nothing."""
    by_trace = paired_replay.tallies(draft, traces, steps)
    found = dict[str, Tally]()
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
