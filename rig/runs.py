"""Folders of the last runs: each holds a Redis file, logs, checkpoints and an MLflow store, so few are kept."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

#: Runs that stand under <data-dir>/runs, the one that runs now among them.
KEPT_RUNS = 3

# Present in every folder made here and locked while its run lasts: what lacks it is not ours to remove.
_MARK = ".run"


@contextmanager
def run_folder(runs: Path) -> Iterator[Path]:
    """A new folder below `runs` for the body; removes all but the newest KEPT_RUNS first.

    A folder whose run still lasts, in whatever process, and a folder that no run made are left alone.
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
    except OSError:  # its run lasts, or another demo removes it at this moment
        return
