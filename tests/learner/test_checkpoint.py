"""The notes of a checkpoint: what this release writes, and what the release before wrote."""

import json
from dataclasses import asdict
from pathlib import Path

from paceline.learner.state import checkpoint
from paceline.learner.state.checkpoint import TRAINER_FILE, LearnerNotes

#: notes.json as release 0.1 wrote it.
GOLDEN = (
    '{"round": 7, "rests": 2, "draft_steps": 3, "optimiser_steps": 420, "parent": 5, "equal": 990, "compared": 1000, '
    '"excess": -4, "settled": {"learned": ["1-0", "1-1"], "rested": [], "held_out": ["1-2"]}, "set_aside": ["0-9"], '
    '"watch": {"flat_rounds": 1, "before": null, "latest": [1.5, 2.0], "rest": null}}'
)
NOTES = LearnerNotes(
    rounds_trained=7,
    rounds_rested=2,
    draft_steps=3,
    optimiser_steps=420,
    parent=5,
    equal=990,
    compared=1000,
    excess=-4,
    settled={"learned": ["1-0", "1-1"], "rested": [], "held_out": ["1-2"]},
    set_aside=["0-9"],
    schedule={"flat_rounds": 1, "before": None, "latest": [1.5, 2.0], "rest": None},
)


def test_the_notes_of_the_release_before_are_read_and_continued(tmp_path: Path) -> None:
    folder = tmp_path / "round-00000007"
    folder.mkdir()
    (folder / "notes.json").write_text(GOLDEN)
    assert checkpoint.load(tmp_path) == (NOTES, folder / TRAINER_FILE)
    assert checkpoint.is_newest(tmp_path, NOTES)
    checkpoint.save_notes(tmp_path, NOTES)
    assert json.loads((folder / "notes.json").read_text()) == asdict(NOTES)
    assert checkpoint.load(tmp_path) == (NOTES, folder / TRAINER_FILE)


def test_notes_without_a_key_have_its_default(tmp_path: Path) -> None:
    (tmp_path / "round-00000003").mkdir()
    (tmp_path / "round-00000003" / "notes.json").write_text('{"round": 3, "parent": 2}')
    loaded = checkpoint.load(tmp_path)
    assert loaded is not None
    assert loaded[0] == LearnerNotes(rounds_trained=3, parent=2)
