"""Checkpoints: what survives a learner is its trainer, and what it had decided when the trainer was saved.

Every release reads the checkpoints of the release before it. `notes.json` says which layout a checkpoint has.

The notes of a learning round name the outcome of every trace the saved weights have seen. When a learner died between
checkpoint and ack, the next one reads them at its start and acks, so no trace is learned twice or counted twice.
"""

import errno
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...buffer.errors import ConfigError
from ..disk import sweep, write_folder, write_text

TRAINER_FILE = "trainer.pt"
_NOTES_FILE = "notes.json"
#: Folder of the checkpoints before the newest, which no learner continues from.
_EARLIER = "earlier"

#: A checkpoint from elsewhere, until it has its name.
_ADOPTED = "adopted"

#: Key in the notes, and number of the one layout of checkpoints that this release writes and reads.
_LAYOUT_KEY = "layout"
LAYOUT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerNotes:
    """The learner's own memory: all that is not in the buffer, on the board or in the trainer."""

    rounds_trained: int = 0  # learning rounds that trained
    rounds_rested: int = 0  # learning rounds with traces that did not train
    draft_steps: int = 0  # of the trainer's plan; 0: nothing trained yet
    optimiser_steps: int = 0
    parent: int | None = None  # version the trainer's weights were last published as, or started from
    equal: int = 0  # verify rounds that replayed with the served length, over the learner's life
    compared: int = 0  # verify rounds that were replayed and compared
    excess: int = 0  # drafts accepted in replay minus drafts accepted when served, over the compared rounds
    settled: Mapping[str, list[str]] = field(default_factory=dict)  # outcome -> entry ids of the last learning round
    set_aside: list[str] = field(default_factory=list)  # entry ids of misreplayed traces, the newest ones
    schedule: Mapping[str, object] = field(default_factory=dict)  # what LearnSchedule.state returned
    line: Mapping[str, object] = field(default_factory=dict)  # what LineDelivery.state returned
    last_learnt: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # what LastLearnt.state returned
    targets: Mapping[str, object] = field(default_factory=dict)  # what TargetHistory.state returned

    @property
    def needed(self) -> frozenset[int]:
        """The versions that the line is compared with or may go back to."""
        return frozenset(int(str(self.line[name])) for name in ("reference", "unsuspected") if name in self.line)


def save(folder: Path, notes: LearnerNotes, save_trainer: Callable[[Path], object], kept: int = 0) -> None:
    """Write a checkpoint below `folder` in one step, then set aside the newest `kept` of those before it.

    Those that are older still are removed. Blocks on the disk.
    """

    def write(new: Path) -> None:
        save_trainer(new / TRAINER_FILE)
        write_notes(new, encode(notes))

    older = _rounds(folder)
    write_folder(_folder(folder, notes.rounds_trained), write)
    for path in older:
        _set_aside(path)
    for path in _rounds(folder / _EARLIER)[: -kept or None]:
        shutil.rmtree(path)


def save_notes(folder: Path, notes: LearnerNotes) -> None:
    """Replace the newest checkpoint's notes in one step and keep its trainer. For learning rounds that do not train.

    FileNotFoundError when the newest checkpoint is not that of `notes.rounds_trained`: another learner has trained
    meanwhile, and these notes do not belong to its trainer.
    """
    own = _folder(folder, notes.rounds_trained)
    if _rounds(folder)[-1:] != [own]:
        raise FileNotFoundError(f"{own}: got {_rounds(folder)[-1:]} as the newest checkpoint, expected this one")
    write_text(own / _NOTES_FILE, encode(notes))


def require_room(folder: Path) -> None:
    """OSError unless a checkpoint and a version fit on the disk beside the newest checkpoint; without one, nothing."""
    newest = _rounds(folder)[-1:]
    # Weights are at most half of a checkpoint: the rest is what the optimiser keeps, one number per weight or two.
    needed_bytes = 3 * sum(path.stat().st_size for found in newest for path in found.iterdir()) // 2
    free_bytes = shutil.disk_usage(folder).free if newest else 0
    if free_bytes < needed_bytes:
        got = free_bytes / 2**20
        expected = needed_bytes / 2**20
        raise OSError(
            errno.ENOSPC,
            f"{folder}: got {got:.0f} MiB free, expected at least {expected:.0f} MiB for what a learning round writes: "
            "make room; until then traces stay pending",
        )


def find(folder: Path, rounds_trained: int) -> tuple[LearnerNotes, Path] | None:
    """The checkpoint after so many learning rounds that trained, as `load` gives one; None where it is not kept."""
    places = (_folder(place, rounds_trained) for place in (folder, folder / _EARLIER))
    found = next((place for place in places if (place / TRAINER_FILE).is_file()), None)
    return None if found is None else (_read(found), found / TRAINER_FILE)


def newest(folder: Path) -> tuple[LearnerNotes, Path] | None:
    """The newest checkpoint as `load` gives it, and no change; its trainer file is beside its notes."""
    found = _rounds(folder)
    return (_read(found[-1]), found[-1] / TRAINER_FILE) if found else None


def adopt(folder: Path, rounds_trained: int, write: Callable[[Path], object]) -> None:
    """Make a folder that `write` fills the newest checkpoint, in one step; one of that number is set aside.

    `write` leaves a trainer, and notes by `write_notes`. Raises what it raises, and then nothing has changed. For the
    holder of the speculator's lease only.
    """
    made = folder / _ADOPTED
    shutil.rmtree(made, ignore_errors=True)  # of a learner that died between the two steps
    write_folder(made, write)
    place = _folder(folder, rounds_trained)
    if place.exists():
        _set_aside(place)
    made.rename(place)


def write_notes(folder: Path, notes: str) -> None:
    """Write what `encode` returned into a checkpoint that is being made."""
    (folder / _NOTES_FILE).write_text(notes, encoding="utf-8")


def is_newest(folder: Path, notes: LearnerNotes) -> bool:
    """Whether nothing was saved after `notes`, so that a learner with them in memory may continue."""
    found = _rounds(folder)
    if not found:
        return False
    saved = _read(found[-1])
    return (saved.rounds_trained, saved.rounds_rested) == (notes.rounds_trained, notes.rounds_rested)


def load(folder: Path) -> tuple[LearnerNotes, Path] | None:
    """Return the newest checkpoint as its notes and its trainer file; None when there is none.

    Sweeps what a dead learner left half written, so only the holder of the speculator's lease may call it. ConfigError
    for a checkpoint of another layout, and no change.
    """
    sweep(folder)
    found = _rounds(folder)
    if not found:
        return None
    return _read(found[-1]), found[-1] / TRAINER_FILE


def _set_aside(path: Path) -> None:
    place = path.parent / _EARLIER / path.name
    place.parent.mkdir(exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    path.rename(place)


def folder_name(rounds_trained: int) -> str:
    """What the folder of a checkpoint is called."""
    return f"round-{rounds_trained:08d}"


def _folder(folder: Path, number: int) -> Path:
    return folder / folder_name(number)


def encode(notes: LearnerNotes) -> str:
    """What notes.json holds."""
    return json.dumps({_LAYOUT_KEY: LAYOUT, **asdict(notes)})


def _read(found: Path) -> LearnerNotes:
    stored = json.loads((found / _NOTES_FILE).read_text(encoding="utf-8"))
    layout = stored.pop(_LAYOUT_KEY, None)
    if layout != LAYOUT:
        raise ConfigError(
            f"{found}: got a checkpoint of layout {layout}, expected {LAYOUT}; run the release that wrote it, "
            "or move the folder away: learning then goes on from the live draft"
        )
    notes = LearnerNotes(**stored)
    # The folder's name decides: under another number every later save would fail.
    return replace(notes, rounds_trained=int(found.name.removeprefix("round-")))


def _rounds(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*"))
