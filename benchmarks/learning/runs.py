"""One run: a stream served chunk by chunk by the draft as it is, and learned from after each measurement.

Serving is replayed: which drafts are accepted is read off the committed tokens, exactly for greedy traffic and without
bias under target_only, since the text does not depend on the draft. Under rejection sampling what is accepted is an
expectation, without bias either (policies/rejection.py). What the target drew once stays drawn, so a run is one sample
of both the stream and the target's sampling; seeds differ in the first.
"""

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import torch

from ...buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from ...buffer.settings.table import BY_NAME
from ...buffer.stream.trace import DraftTrace
from ...learner.disk import write_text
from ...learner.judging import paired_replay
from ...learner.model.draft import Draft
from ...learner.model.draft_io import load_draft, load_target_embedding
from ...learner.training.trainer import DraftTrainer
from ...policies.acceptance import Tally
from ...rig.trace_file import read_card, read_traces
from ..measure.code_digest import code_digest
from .aurora import AuroraTrainer
from .lab import Lab
from .programme import Job, Rate
from .stream import domain_of, make_stream

#: What of the code decides what a run finds.
_DECIDING = (
    "learner/model", "learner/training", "learner/judging", "policies/objectives", "benchmarks/learning/aurora.py",
    "benchmarks/learning/runs.py", "benchmarks/learning/stream.py",
)  # fmt: skip
#: Traces of the replay buffer, unless a learner is told otherwise.
REPLAY_TRACES: int = BY_NAME["REPLAY_TRACES"].default


@dataclass(frozen=True, slots=True)
class Point:
    """What the draft would have had accepted on one chunk, and what it had cost until then."""

    end: int  # traces seen with this chunk
    requests: Mapping[str, Tally]  # by id, in the order they came
    steps: int  # optimiser steps before this chunk
    seconds: float  # of training before this chunk

    @property
    def accepted(self) -> float:
        """Accepted drafts per round, without the bonus token."""
        return sum(self.requests.values(), Tally()).accept_length - 1.0

    @property
    def by_domain(self) -> dict[str, Tally]:
        """The same requests, those of a domain together."""
        found = dict[str, Tally]()
        for request, tally in self.requests.items():
            found[domain_of(request)] = found.get(domain_of(request), Tally()) + tally
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A job and its curve."""

    job: Job
    shift_at: int
    points: tuple[Point, ...]
    steps: int  # of the whole run
    seconds: float


class _Trainer:
    """Either way of training, and what it has cost."""

    def __init__(self, draft: Draft, job: Job) -> None:
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


def kept_run(lab: Lab, job: Job) -> Run:
    """Do as run_job, or read what it made of this job with the same code, draft and traces."""
    plan = (job.row.training_plan(job.setting.steps, job.seed), job.row.training_recipe(job.rate))
    cards = [read_card(lab.trace_file(job.setting, domain)) for domain in _served(lab, job)]
    made_of = msgspec.json.encode([job, plan, cards, sha256_of(_first_draft(lab, job) / WEIGHTS_FILE), _code()])
    file = lab.folder / "runs" / f"{hashlib.sha256(made_of).hexdigest()[:24]}.json"
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=Run)
    run = run_job(lab, job)
    write_text(file, msgspec.json.encode(run).decode())
    return run


@cache
def _code() -> str:
    return code_digest(Path(__file__).resolve().parents[2], _DECIDING)


def run_job(lab: Lab, job: Job) -> Run:
    """Serve and learn one stream; tens of seconds. The first job of a setting loads its traces; they stay in memory."""
    shifted = lab.shifted(job.shifted)
    traces = _traces(tuple(lab.trace_file(job.setting, domain) for domain in _served(lab, job)))
    stream = make_stream(traces, shifted, job.sizes, job.seed, tuning=job.tuning)
    trainer = _Trainer(_initial(lab, job), job)
    replay_buffer: deque[DraftTrace] = deque(maxlen=REPLAY_TRACES)
    replays = job.row.training_recipe(job.rate).replay_share > 0.0
    points = list[Point]()
    seen = 0
    for chunk in stream.chunks(job.row.cadence or job.sizes.cadence):
        seen += len(chunk)
        points.append(Point(seen, tallies(trainer.draft, chunk, job.setting.steps), trainer.steps, trainer.seconds))
        if job.row.rate is not Rate.NONE and seen < len(stream.traces):  # what the last chunk teaches serves nobody
            trainer.fit(chunk, list(replay_buffer) if replays else [])
            replay_buffer.extend(chunk)
    return Run(job=job, shift_at=stream.shift_at, points=tuple(points), steps=trainer.steps, seconds=trainer.seconds)


def tallies(draft: Draft, traces: Sequence[DraftTrace], steps: int) -> dict[str, Tally]:
    """By request, what `draft` would have had accepted of traces that replay can score; changes nothing."""
    by_trace = paired_replay.tallies(draft, traces, steps)
    return {trace.request_id: by_trace[trace.trace_id] for trace in traces}


def _served(lab: Lab, job: Job) -> tuple[str, ...]:
    """The domains of a stream; traces of a chat model's eight would fill the memory of every process."""
    return lab.domains if job.sizes.before_shift else (lab.shifted(job.shifted),)


@cache
def _traces(files: Sequence[Path]) -> tuple[DraftTrace, ...]:
    return tuple(trace for file in files for trace in read_traces(file))


def _first_draft(lab: Lab, job: Job) -> Path:
    """Warm: the one head; cold: another random one for every seed, the same for every row."""
    return lab.warm_head(lab.shifted(job.shifted)) if job.start == "warm" else lab.random_head(job.seed)


def _initial(lab: Lab, job: Job) -> Draft:
    return load_draft(_first_draft(lab, job), load_target_embedding(lab.target.folder)).to(lab.device)
