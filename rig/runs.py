"""Folders of runs: each holds a Redis file, logs, checkpoints and an MLflow store, so only the last few are kept."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
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
