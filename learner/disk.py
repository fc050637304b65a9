"""Folders that are either complete or invisible: written under a hidden name, forced to disk, renamed once."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from ..buffer.errors import WeightsRefused
from ..buffer.version import DraftVersion
from ..buffer.weights_file import WEIGHTS_FILE, weights_file

#: What weights.py writes and publisher.py copies.
_DRAFT_FILES = (WEIGHTS_FILE, "config.json")

#: What writers make of a disk that takes no more: safetensors has its own error, torch says where it stopped.
_WRITERS_FAULTS = (OSError, RuntimeError, SafetensorError)

#: ... in these words.
_TORCH_WRITER = ("PytorchStreamWriter", "unexpected pos")

#: Folders still being written; whatever bears it when nobody writes was left by a process that died.
_UNFINISHED = ".writing-"


def write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a new hidden folder beside `folder`, then rename it to `folder` in one step.

    Blocks until the bytes are on disk. When this raises, or the process dies, `folder` does not exist. OSError
    when `folder` exists already with something in it, and when the disk takes no more, whatever `write` made of that.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    hidden = folder.parent / f"{_UNFINISHED}{folder.name}-{os.getpid()}"
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir()
    try:
        write(hidden)
        for path in sorted(hidden.rglob("*")):
            _force(path)
        _force(hidden)
        hidden.rename(folder)
    except BaseException as fault:  # an interrupt included: half a folder is of use to nobody
        shutil.rmtree(hidden, ignore_errors=True)
        if isinstance(fault, _WRITERS_FAULTS) and _is_of_the_disk(fault):
            raise _unwritten(folder, fault) from fault
        raise
    # The rename itself is on disk only when the parent folder is.
    _force(folder.parent)


def remove_folder(folder: Path) -> None:
    """Take a folder away in one step and free its space; a process that dies in between leaves it to `sweep`."""
    hidden = folder.parent / f"{_UNFINISHED}{folder.name}-gone"
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden)


def folder_of(version: DraftVersion) -> Path | None:
    """The folder its file:// URI names; None for a URI that names no file, which no server would follow either."""
    try:
        return weights_file(version.weights_uri).parent
    except WeightsRefused:
        return None


def files_of(version: DraftVersion) -> list[Path]:
    """The files of a draft that lie where the version says. No others: anybody may have named that folder."""
    folder = folder_of(version)
    return [folder / name for name in _DRAFT_FILES if folder is not None and (folder / name).is_file()]


def write_text(path: Path, text: str) -> None:
    """Replace the file at `path` in one step; readers see the old text or the new one, also after a crash.

    OSError, and the old text stays, when the disk takes no more.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.parent / f"{_UNFINISHED}{path.name}"
    try:
        hidden.write_text(text, encoding="utf-8")
        _force(hidden)
        hidden.rename(path)
    except OSError as fault:
        hidden.unlink(missing_ok=True)
        raise _unwritten(path, fault) from fault
    _force(path.parent)


def sweep(parent: Path) -> list[Path]:
    """Remove what a dead writer left unfinished in `parent`; return what was removed.

    Only for a process that knows it is the only writer there.
    """
    left = sorted(parent.glob(f"{_UNFINISHED}*"))
    for path in left:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return left


def _is_of_the_disk(fault: Exception) -> bool:
    """Whether a writer's fault is one; torch has one type for everything, and a device's own must stay as it is."""
    return not isinstance(fault, RuntimeError) or any(word in str(fault) for word in _TORCH_WRITER)


def _unwritten(path: Path, fault: Exception) -> OSError:
    free_mib = shutil.disk_usage(path.parent).free / 2**20
    return OSError(
        getattr(fault, "errno", None) or errno.EIO,
        f"{path}: got {fault}, expected it written whole; {free_mib:.0f} MiB are free there: make room, and check that "
        "the disk of PACELINE_DATA_DIR is mounted and may be written to",
    )


def _force(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
