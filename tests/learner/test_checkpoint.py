"""Checkpoints: bytes that release 0.1 wrote stay readable, and another layout is refused by name."""

import json
from pathlib import Path

import pytest
from paceline.buffer.errors import ConfigError
from paceline.learner.state import checkpoint
from paceline.learner.state.checkpoint import TRAINER_FILE, LearnerNotes

#: notes.json as release 0.1 wrote it.
GOLDEN = (
    '{"layout": 1, "rounds_trained": 7, "rounds_rested": 2, "draft_steps": 3, "optimiser_steps": 420, "parent": 5, '
    '"equal": 990, "compared": 1000, "excess": -4, "settled": {"learned": ["1-0", "1-1"], "rested": [], '
    '"held_out": ["1-2"]}, "set_aside": ["0-9"], "schedule": {"flat_rounds": 1, "before": null, "latest": [1.5, 2.0], '
    '"rest": null}, "line": {"reference": 4, "unsuspected": 3}, "last_learnt": {"requests": ["r"], "prompts": []}, '
    '"targets": {"target": "llama"}}'
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
    line={"reference": 4, "unsuspected": 3},
    last_learnt={"requests": ["r"], "prompts": []},
    targets={"target": "llama"},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "round-00000007"
    made.mkdir()
    (made / "notes.json").write_text(GOLDEN)
    return made


def test_notes_that_a_release_wrote_are_read_and_written_as_it_did(folder: Path) -> None:
    assert checkpoint.load(folder.parent) == (NOTES, folder / TRAINER_FILE)
    assert checkpoint.is_newest(folder.parent, NOTES)
    checkpoint.save_notes(folder.parent, NOTES)
    assert (folder / "notes.json").read_text() == GOLDEN


@pytest.mark.parametrize("layout", [None, 0, 2])
def test_a_checkpoint_of_another_layout_is_refused_and_stays(folder: Path, layout: int | None) -> None:
    other = json.loads(GOLDEN) | {"layout": layout}
    (folder / "notes.json").write_text(json.dumps(other))
    with pytest.raises(ConfigError, match=rf"round-00000007: got a checkpoint of layout {layout}, expected 1; run the"):
        checkpoint.load(folder.parent)
    assert json.loads((folder / "notes.json").read_text()) == other
