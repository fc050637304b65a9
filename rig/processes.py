"""Process groups and process trees, which must be gone when a service has ended."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

_POLL_S = 0.1


def descendants(pid: int) -> list[psutil.Process]:
    """All living processes that `pid` started, directly or not, in any session or group; none when it has ended.

    Call it while `pid` still lives: the children of a dead process belong to init.
    """
    with suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def kill_all(processes: Sequence[psutil.Process], limit_s: float) -> None:
    """SIGKILL to each of `processes`; blocks until they have ended, at most `limit_s`."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=limit_s)


def signal_group(group: int, sign: int) -> bool:
    """Send signal `sign` to a process group; whether the group had a member. Signal 0 only asks."""
    with suppress(ProcessLookupError):
        os.killpg(group, sign)
        return True
    return False


def is_group_gone_within(group: int, limit_s: float) -> bool:
    """Wait at most `limit_s` for the last process of the group to end; whether it has."""
    deadline_s = time.monotonic() + limit_s
    while signal_group(group, 0):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
