"""Processes that a process started are found across sessions, and killed."""

import subprocess
import sys

import psutil
from paceline.rig.processes import descendants, kill_all

CHILD = "import signal; print('up', flush=True); signal.pause()"
PARENT = f"""
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie that nobody reaps does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_grandchild_in_a_session_of_its_own_is_a_descendant_and_can_be_killed() -> None:
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {PARENT!r}])"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as leader:
        grandchild = int(leader.stdout.readline())
        family = descendants(leader.pid)
        assert len(family) == 2
        assert family[-1].pid == grandchild
        kill_all([*family, psutil.Process(leader.pid)], 10.0)
    assert [process for process in family if is_alive(process)] == []


def test_killing_a_process_that_has_ended_does_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE) as started:
        process = psutil.Process(started.pid)
        started.kill()
    kill_all([process], 0.0)
    assert not process.is_running()


def test_a_process_that_has_ended_has_no_descendants() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert descendants(ended.pid) == []
