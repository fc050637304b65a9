"""A program in the foreground: its exit code, its output, and the time it is given to end what it started."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from paceline.rig.processes import run_to_its_end
from waiting import until

#: Says that it is ready, and on SIGTERM ends what it started, which takes it a moment.
PROGRAM = """
import signal, subprocess, sys
from pathlib import Path
folder = Path(sys.argv[1])
started = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])

def end(*_):
    started.terminate()
    (folder / "ended").write_text(str(started.wait()))
    raise SystemExit(5)

signal.signal(signal.SIGTERM, end)
(folder / "ready").touch()
signal.pause()
"""


@pytest.fixture
def told_to_end() -> Iterator[None]:
    """SIGUSR1 raises KeyboardInterrupt, as Ctrl-C does."""
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("told_to_end")
def test_a_program_that_is_interrupted_ends_what_it_started_before_the_call_does(tmp_path: Path) -> None:
    def interrupt() -> None:
        until((tmp_path / "ready").exists, "the program to be ready")
        os.kill(os.getpid(), signal.SIGUSR1)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        run_to_its_end([sys.executable, "-c", PROGRAM, str(tmp_path)], tmp_path / "log")
    watcher.join()
    assert (tmp_path / "ended").read_text() == str(-signal.SIGTERM)


def test_the_exit_code_and_both_outputs_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of a run before")
    program = "import os, sys; os.write(2, b'error '); os.write(1, os.getcwd().encode()); sys.exit(3)"
    assert run_to_its_end([sys.executable, "-c", program], log, tmp_path) == 3
    assert log.read_text() == f"error {tmp_path}"
