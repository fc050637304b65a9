"""Folders that are either complete or invisible: written under a hidden name, forced to disk, renamed once."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..buffer.version import DraftVersion

#: Folders still being written; whatever bears it when nobody writes was left by a process that died.
_UNFINISHED = ".writing-"


def write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a new hidden folder beside `folder`, then rename it to `folder` in one step.

    Blocks until the bytes are on disk. When this raises, or the process dies, `folder` does not exist. OSError
    when `folder` exists already with something in it.
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
    except BaseException:  # an interrupt included: half a folder is of use to nobody
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    # The rename itself is on disk only when the parent folder is.
    _force(folder.parent)


def remove_folder(folder: Path) -> None:
    """Take a folder away in one step and free its space; a process that dies in between leaves it to `sweep`."""
    hidden = folder.parent / f"{_UNFINISHED}{folder.name}-gone"
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden)


def folder_of(version: DraftVersion) -> Path:
    """The folder its file:// URI names."""
    return Path(unquote(urlsplit(version.weights_uri).path))


def write_text(path: Path, text: str) -> None:
    """Replace the file at `path` in one step; readers see the old text or the new one, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.parent / f"{_UNFINISHED}{path.name}"
    hidden.write_text(text, encoding="utf-8")
    _force(hidden)
    hidden.rename(path)
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


def _force(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
