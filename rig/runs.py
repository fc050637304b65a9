"""Runs: their folders, of which only the last few are kept, and the machine that their figures are of."""

import fcntl
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Folders kept under <data-dir>/runs, the current run's included.
KEPT_RUNS = 3

# In every folder made here, and locked while its run lasts. A folder without it was not made here and is not removed.
_MARK = ".run"


@contextmanager
def run_folder(runs: Path) -> Iterator[Path]:
    """A new folder below `runs` for the body; removes all but the newest KEPT_RUNS first.

    Leaves alone a folder whose run still lasts, in any process, and a folder that no run made.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = runs / f"{stamp}-{os.getpid()}"
    folder.mkdir(parents=True)
    with (folder / _MARK).open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        for old in sorted(path.parent for path in runs.glob(f"*/{_MARK}"))[:-KEPT_RUNS]:
            _remove_unless_used(old)
        yield folder


def _remove_unless_used(folder: Path) -> None:
    try:
        with (folder / _MARK).open() as mark:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    except OSError:  # its run still lasts, or another run is removing it
        return


def machine() -> dict[str, str | int]:
    """Processor, cores, and the versions of Python, torch and SGLang; "absent" for one that is not installed."""
    versions = {package: _installed(package) for package in ("torch", "sglang")}
    return {"processor": _processor(), "cores": os.cpu_count() or 1, "python": platform.python_version(), **versions}


def _processor() -> str:
    """The processor's model name where Linux reports one."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - a kernel file
            named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        named = []
    return named[0] if named else platform.processor() or platform.machine()


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
