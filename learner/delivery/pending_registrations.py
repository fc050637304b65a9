"""Versions that MLflow has not recorded yet, kept on disk until it has."""

import json
from dataclasses import asdict
from pathlib import Path

from ..disk import write_text
from .run_record import RunRecord

#: Name of the folder in release 0.1; what waits there is registered, too.
_FORMER_NAME = "unregistered"


class PendingRegistrations:
    """One JSON file per version, registered in the order of their numbers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folders = (folder, folder.with_name(_FORMER_NAME))

    def __len__(self) -> int:
        return len(self.files())

    def add(self, record: RunRecord) -> None:
        """Keep a record; it is on disk when this returns. OSError on a full disk."""
        write_text(self._folder / f"v{record.number:06d}.json", json.dumps(asdict(record)))

    def files(self) -> list[Path]:
        """What is pending; remove a file once MLflow has its record."""
        return sorted((file for folder in self._folders for file in folder.glob("v*.json")), key=lambda file: file.name)


def read_record(file: Path) -> RunRecord:
    """The record in one of `files`."""
    return RunRecord(**json.loads(file.read_text(encoding="utf-8")))
