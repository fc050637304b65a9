"""Versions that MLflow has not recorded yet, kept on disk until it has."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..config import LearnerConfig
from ..disk import write_text
from .run_record import FIT, GATE, JUDGED_AGAINST_TAG, LOSS, SHA256_TAG, VERDICT_TAG, RunRecord

#: Name of the folder in release 0.1; what waits there is registered, too.
_FORMER_NAME = "unregistered"
#: Tag of release 0.1 -> today's; what else was a tag is a parameter now.
_FORMER_TAGS = MappingProxyType(
    {
        SHA256_TAG: SHA256_TAG,
        "paceline.gate.verdict": VERDICT_TAG,
        "paceline.gate.reference": JUDGED_AGAINST_TAG,
    }
)
#: A path of the machine that wrote it, which leads nowhere once its folder is moved.
_DROPPED_TAG = "paceline.weights_uri"
#: Metrics of release 0.1 that tell of the fit; all others are the gate's.
_FORMER_FIT = MappingProxyType({"first_position_accept": "first_position_accept", "fit_s": "seconds"})


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
        found = (file for folder in self._folders for file in folder.glob("v*.json") if file.stem[1:].isdecimal())
        return sorted(found, key=lambda file: file.name)


def open_pending(config: LearnerConfig) -> PendingRegistrations:
    """Return what waits of a speculator's versions."""
    return PendingRegistrations(config.checkpoints_dir / "pending_registrations")


def number_of(file: Path) -> int:
    """Return which draft the record in one of `files` is of."""
    return int(file.stem[1:])


def read_record(file: Path) -> RunRecord:
    """The record in one of `files`; one of release 0.1 under the names of today."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    return RunRecord(**(stored if "evidence" in stored else _migrated(stored)))


def _migrated(stored: Mapping[str, Any]) -> dict[str, Any]:
    tags = stored.get("tags", {})
    params = dict(stored.get("params", {}))
    left_out = {*_FORMER_TAGS, _DROPPED_TAG}
    params |= {_param(name): value for name, value in tags.items() if name not in left_out and value}
    return {
        **stored,
        "tags": {_FORMER_TAGS[name]: value for name, value in tags.items() if name in _FORMER_TAGS},
        "params": params,
        "metrics": {_metric(name): value for name, value in stored.get("metrics", {}).items()},
        "curves": {LOSS if name == "loss" else name: curve for name, curve in stored.get("curves", {}).items()},
    }


def _param(tag: str) -> str:
    return tag.removeprefix("paceline.").replace(".", "_")


def _metric(name: str) -> str:
    return f"{FIT}{_FORMER_FIT[name]}" if name in _FORMER_FIT else f"{GATE}{name}"
