"""Versions that MLflow has not recorded yet, kept on disk until it has."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from ...buffer.errors import ConfigError
from ..config import LearnerConfig
from ..disk import write_text
from .run_record import RunRecord

#: Key in a file, and number of the one layout that this release writes and reads.
_LAYOUT_KEY = "layout"
LAYOUT = 1


class PendingRegistrations:
    """One JSON file per version, registered in the order of their numbers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __len__(self) -> int:
        return len(self.files())

    def add(self, record: RunRecord) -> None:
        """Keep a record; it is on disk when this returns. OSError on a full disk."""
        write_text(self._folder / f"v{record.number:06d}.json", json.dumps({_LAYOUT_KEY: LAYOUT, **asdict(record)}))

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Give whether nobody else registers from here while the body runs. A process that dies lets go of it."""
        with ExitStack() as stack:
            with suppress(OSError):  # a disk that takes no file, or no lock: then one learner is trusted to be alone
                self._folder.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(self._folder.with_suffix(".lock").open("w"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield False
                    return
            yield True

    def files(self) -> list[Path]:
        """Return what is pending; remove a file once MLflow has its record."""
        found = (file for file in self._folder.glob("v*.json") if file.stem[1:].isdecimal())
        return sorted(found)


def open_pending(config: LearnerConfig) -> PendingRegistrations:
    """Return what waits of a speculator's versions."""
    return PendingRegistrations(config.checkpoints_dir / "pending_registrations")


def number_of(file: Path) -> int:
    """Return which draft the record in one of `files` is of."""
    return int(file.stem[1:])


def read_record(file: Path) -> RunRecord:
    """Return the record in one of `files`. ConfigError for one of another layout."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    layout = stored.pop(_LAYOUT_KEY, None)
    if layout != LAYOUT:
        raise ConfigError(
            f"{file}: got a record of layout {layout}, expected {LAYOUT}: run the release of paceline that wrote it"
        )
    return RunRecord(**stored)
