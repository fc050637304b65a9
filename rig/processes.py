"""Processes that start others: how they are run and ended, and that nothing of them stays."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

import psutil

from ..serving.launch.signals import borrowed_signals

_POLL_S = 0.1
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


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


def run_to_its_end(command: Sequence[str], log: Path, cwd: Path | None = None) -> int:
    """Run `command` with its output in `log`, replaced; its exit code. Blocks until it has ended.

    An exception meanwhile, such as Ctrl-C, is raised again once the program was sent SIGTERM and has ended:
    subprocess.run would kill it, and what it started would stay.
    """
    with log.open("w", encoding="utf-8") as out:
        program = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT)
        try:
            return program.wait()
        except BaseException:  # Ctrl-C too: what ends the wait ends the program, and is raised again
            program.terminate()
            program.wait()
            raise


def ending_signals() -> AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP end the body as Ctrl-C does, by SystemExit(128 + number), which unwinds it.

    See borrowed_signals for signals that are ignored.
    """
    return borrowed_signals(_ENDING, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
