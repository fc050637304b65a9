"""A draft that has learnt what a test's server served, swapped into that server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from made_versions import version_in
from paceline.buffer.board.version import VersionState
from paceline.buffer.stream.trace import DraftTrace
from paceline.learner.model.draft_io import load_draft, load_target_embedding, save_draft
from paceline.learner.training.plan import TrainingPlan
from paceline.learner.training.trainer import DraftTrainer
from waiting import until


def register(rig: Any, folder: Path) -> int:
    """The number on the board of the weights in `folder`."""
    number = rig.board.next_number()
    version = version_in(folder, number, target="e2e-target", target_version="0")
    rig.board.register(version, "test", folder.name)
    return number


def swap_in_learned(rig: Any, traces: Sequence[DraftTrace]) -> Path:
    """Train the draft that the server was started with on `traces`; its folder, once the server drafts with it."""
    folder = rig.folder / "learned"
    torch.set_num_threads(1)
    trainer = DraftTrainer(load_draft(rig.draft, load_target_embedding(rig.target)), TrainingPlan(steps=3, passes=12))
    outcome = trainer.fit(traces, [])
    assert outcome.skipped_steps == 0
    save_draft(trainer.draft, folder)
    for source in (rig.draft, folder):
        number = register(rig, source)
        rig.board.move(number, VersionState.LIVE, "test", source.name)
    until(lambda: rig.status().draft_version == number, "the swap")
    return folder
