"""Process groups and descendants, as Linux tells them: what must be gone when a service has ended."""

import os
import signal
import time
from collections.abc import Sequence
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
            children.setdefault(_state_and_parent(entry)[1], []).append(int(entry.parent.name))
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


def kill_all(pids: Sequence[int], limit_s: float) -> None:
    """SIGKILL to every one of `pids`; blocks until they are gone, at most `limit_s`."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + limit_s
    while any(map(_is_alive, pids)) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def is_group_gone_within(group: int, limit_s: float) -> bool:
    """Wait at most `limit_s` for the last process of the group to be gone; whether it is."""
    deadline_s = time.monotonic() + limit_s
    while signal_group(group, 0):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _is_alive(pid: int) -> bool:
    """Whether `pid` runs; one that nobody has reaped yet does not."""
    with suppress(OSError):
        return _state_and_parent(Path(f"/proc/{pid}/stat"))[0] != "Z"
    return False


def _state_and_parent(stat: Path) -> tuple[str, int]:
    # The name before the last bracket may hold anything, brackets and spaces among them.
    state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
    return state, int(parent)
