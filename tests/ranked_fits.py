"""One rank of the group that tests/learner/test_ranks.py compares with a trainer that is alone."""

import os
import signal
import sys
from pathlib import Path
from unittest.mock import patch

import torch
from paceline.learner.model.draft_io import load_draft, load_target_embedding, save_draft
from paceline.learner.training.plan import TrainingPlan
from paceline.learner.training.rank_group import Fit, joining
from paceline.learner.training.trainer import DraftTrainer, FitReport
from paceline.rig.trace_file import read_traces

FITS = 10
PLAN = TrainingPlan(steps=3, passes=1)


def new_trainer(target: Path, draft: Path, plan: TrainingPlan = PLAN) -> DraftTrainer:
    """A trainer in float32 on any processor: in bfloat16 the order of a sum shows in the third digit."""
    with patch("paceline.learner.training.trainer.has_bfloat16", lambda _: False):
        return DraftTrainer(load_draft(draft, load_target_embedding(target)), plan)


def fits(trainer: DraftTrainer, traces: Path) -> list[FitReport]:
    """Ten fits of an odd number of new traces each, with all before them to replay; the last by another plan."""
    read = read_traces(traces)
    each = len(read) // FITS
    reports = []
    for number in range(FITS):
        if number == FITS - 1:
            trainer.plan = TrainingPlan(steps=3, passes=2)
        reports.append(trainer.fit(read[number * each : (number + 1) * each], read[: number * each]))
    return reports


def main() -> None:
    """Be a rank as torchrun's environment says; rank 0 saves what it has learnt."""
    target, draft, traces, out = map(Path, sys.argv[1:5])

    def made(fit: Fit) -> DraftTrainer:
        if sys.argv[5:] == ["dies"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return new_trainer(target, draft, fit.plan)

    with joining(torch.device("cpu")) as ranks:
        if ranks.rank:
            ranks.follow(made)
        else:
            trainer = new_trainer(target, draft)
            fits(trainer, traces)
            save_draft(trainer.draft, out)


if __name__ == "__main__":
    main()
