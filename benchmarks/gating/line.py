"""Trains one line of drafts over a stream in the product's way, and scores each on all that it never learnt from."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ...buffer.trace import DraftTrace, Int32s
from ...learner.claim.intake import is_held_out
from ...learner.judging.replay import replay_traces
from ...learner.model.draft_io import load_draft, load_target_embedding
from ...learner.model.eagle3 import Eagle3Draft
from ...learner.training.plan import RECIPE, Recipe, TrainingPlan
from ...learner.training.trainer import DraftTrainer
from ...policies.acceptance import replayed_rounds
from ...rig.progress import Report
from ..learning.lab import Lab
from ..learning.stream import domain_of
from .matrix import Bools, Matrix
from .pool import COMMITTED_TOKENS, SETTING
from .streams import StreamedRequest, StreamPlan

#: The product's defaults.
HOLDOUT_SHARE = 0.1
REPLAY_TRACES = 200
#: Against the product's learning rate, in a round that ruins the draft.
RUINOUS = 20.0
#: Of the standard deviation of each weight tensor: how much copies of one draft differ.
PERTURBATION = 0.05


@dataclass(frozen=True, slots=True)
class Job:
    """One line to be trained."""

    plan: StreamPlan
    seed: int
    blocks_per_round: int

    @property
    def name(self) -> str:
        """As in file names."""
        return f"{self.plan.name}-{self.seed}" + ("" if self.blocks_per_round == 2 else f"-{self.blocks_per_round}")


class _Scores:
    """The matrix in the making."""

    def __init__(self, requests: Sequence[StreamedRequest], job: Job) -> None:
        self.requests, self.blocks_per_round, self.is_equal = requests, job.blocks_per_round, job.plan.is_equal
        self.block_N = blocks(requests, job.blocks_per_round)
        self.held_out_N = np.array([is_held_out(r.trace.request_id, HOLDOUT_SHARE) for r in requests])
        versions = int(self.block_N.max()) + 1
        self.accepted_VN = np.full((versions, len(requests)), -1, np.int32)
        self.rounds_VN = self.accepted_VN.copy()
        self.fits: list[tuple[int, float]] = []  # optimiser steps and seconds of every block
        self.accepted_VNR = np.full((*self.accepted_VN.shape, COMMITTED_TOKENS), -1, np.int8)

    def is_wanted(self, version: int) -> Bools:
        """What a version is scored on: what a round ends with on all it may be asked for, others on their block."""
        if self.is_equal:
            return np.ones(len(self.requests), np.bool_)
        is_candidate = version % self.blocks_per_round == 0
        wanted_N: Bools = (self.block_N >= version) | self.held_out_N if is_candidate else self.block_N == version
        return wanted_N

    def add(self, version: int, draft: Eagle3Draft) -> None:
        """Score a version."""
        rows = np.flatnonzero(self.is_wanted(version)).tolist()
        traces = [self.requests[row].trace for row in rows]
        runs = replay_traces(draft, traces, SETTING.steps, only_verdicts=True)
        for row, trace, run in zip(rows, traces, runs, strict=True):
            accepted_R = replayed_rounds(trace, run)
            self.accepted_VN[version, row], self.rounds_VN[version, row] = accepted_R.sum(), len(accepted_R)
            self.accepted_VNR[version, row, : len(accepted_R)] = accepted_R

    def learned(self, block: int) -> list[DraftTrace]:
        """What the line trains on in a block."""
        rows = np.flatnonzero((self.block_N == block) & ~self.held_out_N).tolist()
        return [self.requests[row].trace for row in rows]

    def matrix(self, card: dict[str, object]) -> Matrix:
        return Matrix(
            self.accepted_VN, self.rounds_VN, self.block_N, self.held_out_N,
            np.array([request.is_honest for request in self.requests]),
            np.array([request.trace.tenant for request in self.requests]),
            np.array([domain_of(request.trace) for request in self.requests]),
            self.blocks_per_round, card, self.accepted_VNR,
        )  # fmt: skip


def blocks(requests: Sequence[StreamedRequest], per_round: int) -> Int32s:
    """The block of every request, int32[N]: a round's requests in the order they came, in `per_round` equal parts."""
    chunk_N = np.array([request.chunk for request in requests])
    place_N = np.arange(len(chunk_N)) - np.searchsorted(chunk_N, chunk_N)
    size_N = np.bincount(chunk_N)[chunk_N]
    found: Int32s = (chunk_N * per_round + place_N * per_round // size_N).astype(np.int32)
    return found


def trained_line(lab: Lab, job: Job, requests: Sequence[StreamedRequest], report: Report) -> Matrix:
    """Train and score one line; about a minute on one thread."""
    began_s = time.monotonic()
    scores = _Scores(requests, job)
    versions = _perturbed(lab, job, scores) if job.plan.is_equal else _trained(lab, job, scores)
    for version, draft in versions:
        scores.add(version, draft)
        last = len(scores.accepted_VN) - 1
        report(version / last, f"version {version} of {last}")
    took_s = time.monotonic() - began_s
    return scores.matrix({"stream": job.plan.name, "seed": job.seed, "seconds": took_s, "fits": scores.fits})


def _trained(lab: Lab, job: Job, scores: _Scores) -> Iterator[tuple[int, Eagle3Draft]]:
    """Every version with its draft, which the next one changes in place."""
    plan = TrainingPlan(steps=SETTING.steps, seed=job.seed)
    trainer = DraftTrainer(initial_draft(lab, job), plan)
    replay_buffer: deque[DraftTrace] = deque(maxlen=REPLAY_TRACES)
    yield 0, trainer.draft
    for block in range(len(scores.accepted_VN) - 1):
        is_ruined = block // job.blocks_per_round in job.plan.ruined
        trainer.recipe = _ruinous() if is_ruined else RECIPE
        fresh = scores.learned(block)
        fit = trainer.fit(fresh, list(replay_buffer))
        scores.fits.append((fit.steps, fit.seconds))
        replay_buffer.extend(fresh)
        yield block + 1, trainer.draft


def _ruinous() -> Recipe:
    return replace(
        RECIPE,
        cold_learning_rate=RECIPE.cold_learning_rate * RUINOUS,
        warm_learning_rate=RECIPE.warm_learning_rate * RUINOUS,
    )


def initial_draft(lab: Lab, job: Job) -> Eagle3Draft:
    """Warm: the one head; cold: another random one for every seed."""
    folder = lab.warm_head if job.plan.start == "warm" else lab.random_head(job.seed)
    return load_draft(folder, load_target_embedding(lab.target.folder)).to(lab.device)


def _perturbed(lab: Lab, job: Job, scores: _Scores) -> Iterator[tuple[int, Eagle3Draft]]:
    """Copies of the initial draft, each with noise of its own: no version is meant to be better than another."""
    random = torch.Generator().manual_seed(job.seed)
    for version in range(0, len(scores.accepted_VN), job.blocks_per_round):
        draft = initial_draft(lab, job)
        with torch.no_grad():
            for weight in draft.parameters():
                if weight.dim() > 1:
                    weight.add_(PERTURBATION * weight.std() * torch.randn(weight.shape, generator=random))
        yield version, draft
