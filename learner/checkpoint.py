"""What survives a learner: its trainer, and what it had decided when the trainer was saved.

The notes of a round name the outcome of every trace the saved weights have seen. A learner that died between
checkpoint and ack reads them at its start and acks, so that no trace is learnt twice or counted twice.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .disk import sweep, write_folder

TRAINER_FILE = "trainer.pt"
_NOTES_FILE = "notes.json"


@dataclass(frozen=True, slots=True)
class Notes:
    """The learner's own memory; all that is not in the buffer, on the board or in the trainer."""

    round: int = 0  # rounds that trained
    draft_steps: int = 0  # of the trainer's plan; 0: nothing trained yet
    optimiser_steps: int = 0
    parent: int | None = None  # version the trainer's weights were published as last, or started from
    equal: int = 0  # replay identity over the learner's life: rounds equal
    compared: int = 0  # ... of rounds compared
    excess: int = 0  # ... drafts that stood in replay beyond those that stood when served
    settled: Mapping[str, list[str]] = field(default_factory=dict)  # outcome -> entry ids of the last round


def save(folder: Path, notes: Notes, save_trainer: Callable[[Path], object]) -> None:
    """Write a checkpoint below `folder` in one step, then remove the ones before it. Blocks on the disk."""

    def write(new: Path) -> None:
        save_trainer(new / TRAINER_FILE)
        (new / _NOTES_FILE).write_text(json.dumps(asdict(notes)), encoding="utf-8")

    older = _rounds(folder)
    write_folder(folder / f"round-{notes.round:08d}", write)
    for path in older:
        shutil.rmtree(path)


def load(folder: Path) -> tuple[Notes, Path] | None:
    """The newest checkpoint as its notes and its trainer file; None when there is none.

    Sweeps what a dead learner left half written, so only the holder of the speculator's lease may call it.
    """
    sweep(folder)
    found = _rounds(folder)
    if not found:
        return None
    notes = Notes(**json.loads((found[-1] / _NOTES_FILE).read_text(encoding="utf-8")))
    return notes, found[-1] / TRAINER_FILE


def _rounds(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*"))
