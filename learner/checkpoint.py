"""What survives a learner: its trainer, and what it had decided when the trainer was saved.

The notes of a round name the outcome of every trace the saved weights have seen. A learner that died between
checkpoint and ack reads them at its start and acks, so that no trace is learnt twice or counted twice.
"""

import errno
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from .disk import sweep, write_folder, write_text

TRAINER_FILE = "trainer.pt"
_NOTES_FILE = "notes.json"


@dataclass(frozen=True, slots=True)
class LearnerNotes:
    """The learner's own memory; all that is not in the buffer, on the board or in the trainer."""

    round: int = 0  # rounds that trained
    rests: int = 0  # ... and that did not, though traces had come
    draft_steps: int = 0  # of the trainer's plan; 0: nothing trained yet
    optimiser_steps: int = 0
    parent: int | None = None  # version the trainer's weights were published as last, or started from
    equal: int = 0  # replay identity over the learner's life: rounds equal
    compared: int = 0  # ... of rounds compared
    excess: int = 0  # ... drafts that stood in replay beyond those that stood when served
    settled: Mapping[str, list[str]] = field(default_factory=dict)  # outcome -> entry ids of the last round
    set_aside: list[str] = field(default_factory=list)  # entry ids of misreplayed traces, the newest ones
    watch: Mapping[str, object] = field(default_factory=dict)  # state of policies.drift.LearnSchedule


def save(folder: Path, notes: LearnerNotes, save_trainer: Callable[[Path], object]) -> None:
    """Write a checkpoint below `folder` in one step, then remove the ones before it. Blocks on the disk."""

    def write(new: Path) -> None:
        save_trainer(new / TRAINER_FILE)
        (new / _NOTES_FILE).write_text(json.dumps(asdict(notes)), encoding="utf-8")

    older = _rounds(folder)
    write_folder(_folder(folder, notes.round), write)
    for path in older:
        shutil.rmtree(path)


def save_notes(folder: Path, notes: LearnerNotes) -> None:
    """Replace the notes of the checkpoint of `notes.round` in one step; its trainer stays. For rounds without training.

    FileNotFoundError when that is not the newest: somebody else has learnt meanwhile, and their trainer is not ours.
    """
    own = _folder(folder, notes.round)
    if _rounds(folder)[-1:] != [own]:
        raise FileNotFoundError(f"{own}: got {_rounds(folder)[-1:]} as the newest checkpoint, expected this one")
    write_text(own / _NOTES_FILE, json.dumps(asdict(notes)))


def require_room(folder: Path) -> None:
    """OSError unless a checkpoint and a version fit on the disk beside the newest checkpoint; without one, nothing."""
    newest = _rounds(folder)[-1:]
    # Of a checkpoint the weights are a third, or less: two moments of the optimiser lie beside them.
    needed_bytes = 3 * sum(path.stat().st_size for found in newest for path in found.iterdir()) // 2
    free_bytes = shutil.disk_usage(folder).free if newest else 0
    if free_bytes < needed_bytes:
        got, expected = free_bytes / 2**20, needed_bytes / 2**20
        raise OSError(
            errno.ENOSPC,
            f"{folder}: got {got:.0f} MiB free there, expected {expected:.0f} for what a round writes: make room; "
            "until then traces wait",
        )


def is_newest(folder: Path, notes: LearnerNotes) -> bool:
    """Whether nothing was saved behind `notes`: then who holds them in memory may go on from there."""
    found = _rounds(folder)
    if not found:
        return False
    saved = _read(found[-1])
    return (saved.round, saved.rests) == (notes.round, notes.rests)


def load(folder: Path) -> tuple[LearnerNotes, Path] | None:
    """The newest checkpoint as its notes and its trainer file; None when there is none.

    Sweeps what a dead learner left half written, so only the holder of the speculator's lease may call it.
    """
    sweep(folder)
    found = _rounds(folder)
    if not found:
        return None
    return _read(found[-1]), found[-1] / TRAINER_FILE


def _folder(folder: Path, number: int) -> Path:
    return folder / f"round-{number:08d}"


def _read(found: Path) -> LearnerNotes:
    # The folder's name has the last word on the number: under a wrong one every later round would fail to save.
    notes = LearnerNotes(**json.loads((found / _NOTES_FILE).read_text(encoding="utf-8")))
    return replace(notes, round=int(found.name.removeprefix("round-")))


def _rounds(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*"))
