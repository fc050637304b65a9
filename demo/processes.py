"""Process groups and descendants, as Linux tells them: what must be gone when a service has ended."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_POLL_S = 0.1


def descendants(pid: int) -> list[int]:
    """Ids of all living processes that `pid` started, directly or not, in whatever session or group they are.

    Ask while `pid` still lives: the children of a dead process belong to init.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone since it was listed
            # The name before the last bracket may hold anything; state and parent stand behind it.
            parent = int(entry.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found = list(children.get(pid, ()))
    for child in found:  # grows while it is read
        found += children.get(child, ())
    return found


def signal_group(group: int, sign: int) -> bool:
    """Whether anybody of the process group was there to be signalled; 0 only asks."""
    with suppress(ProcessLookupError):
        os.killpg(group, sign)
        return True
    return False


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL to every one of `pids` that still lives; returns at once."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def is_group_gone_within(group: int, limit_s: float) -> bool:
    """Wait at most `limit_s` for the last process of the group to be gone; whether it is."""
    deadline_s = time.monotonic() + limit_s
    while signal_group(group, 0):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
