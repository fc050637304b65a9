"""Who a process started, found across sessions; and ended."""

import subprocess
import sys
from pathlib import Path

from paceline.rig.processes import descendants, kill_all

CHILD = "import signal; print('up', flush=True); signal.pause()"
PARENT = f"""
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""


def test_a_grandchild_in_a_session_of_its_own_is_a_descendant_and_can_be_killed() -> None:
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {PARENT!r}])"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as leader:
        grandchild = int(leader.stdout.readline())
        family = descendants(leader.pid)
        assert len(family) == 2
        assert family[-1] == grandchild
        kill_all([*family, leader.pid], 10.0)
    stats = [Path(f"/proc/{pid}/stat") for pid in family]
    assert [path for path in stats if path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"] == []


def test_a_process_without_children_has_none_and_killing_the_dead_does_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert descendants(ended.pid) == []
    kill_all([ended.pid], 0.0)
