"""Folders that are either complete or invisible: written under a hidden name, forced to disk, renamed once."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

from safetensors import SafetensorError

from ..buffer.errors import ConfigError, StoreUnavailable, told

#: What writers raise on a full disk: safetensors has its own error, torch a RuntimeError.
_WRITERS_FAULTS = (OSError, RuntimeError, SafetensorError)

#: Parts of the message of torch's RuntimeError for a full disk.
_TORCH_WRITER = ("PytorchStreamWriter", "unexpected pos")

#: Prefix of what is still being written; when nobody writes, a process that died left it.
_UNFINISHED = ".writing-"


def write_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a new hidden folder beside `folder`, then rename it to `folder` in one step.

    Blocks until the bytes are on disk. When this raises, or the process dies, `folder` does not exist. OSError
    when `folder` exists already with something in it, and on a full disk, whatever `write` itself raised.
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
    except BaseException as fault:  # an interrupt included: nobody can use half a folder
        shutil.rmtree(hidden, ignore_errors=True)
        if isinstance(fault, _WRITERS_FAULTS) and _is_disk_fault(fault):
            raise _unwritten(folder, fault) from fault
        raise
    # The rename itself is on disk only when the parent folder is.
    _force(folder.parent)


def require_writable(folder: Path, setting: str) -> None:
    """ConfigError, naming the setting, unless `folder` is there or can be made, and takes a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as probe:
            probe.write(b"-")
    except OSError as fault:
        raise ConfigError(f"{setting}: got {folder}, expected a folder to write to; {told(fault)}") from fault


def remove_folder(folder: Path) -> None:
    """Remove a folder in one step, then free its space; if the process dies in between, `sweep` frees it."""
    hidden = folder.parent / f"{_UNFINISHED}{folder.name}-gone"
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden)


def write_text(path: Path, text: str) -> None:
    """Replace the file at `path` in one step; readers see the old text or the new one, also after a crash.

    On a full disk OSError, and the old text stays.
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

    Only for the only writer there.
    """
    left = sorted(parent.glob(f"{_UNFINISHED}*"))
    for path in left:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return left


def _is_disk_fault(fault: Exception) -> bool:
    """Return whether the disk caused it: torch raises RuntimeError for everything, and a GPU's fault stays one."""
    return not isinstance(fault, RuntimeError | StoreUnavailable) or any(word in str(fault) for word in _TORCH_WRITER)


def _unwritten(path: Path, fault: Exception) -> OSError:
    free_mib = shutil.disk_usage(path.parent).free / 2**20
    return OSError(
        getattr(fault, "errno", None) or errno.EIO,
        f"{path}: got {fault}, expected to write all of it; {free_mib:.0f} MiB are free there: make room, and check "
        "that the disk of PACELINE_DATA_DIR is mounted and writable",
    )


def _force(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
