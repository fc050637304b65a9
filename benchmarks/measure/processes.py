"""Processes that are measured: what they hold, and stopping those that would take from what is measured meanwhile."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from ...rig.processes import descendants


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Keep a process and all it started stopped during the body; afterwards they run again, so that they can end."""
    signal_all(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(pid, signal.SIGCONT)


@contextmanager
def resumed(pid: int) -> Iterator[None]:
    """Let a suspended process and all it started run during the body."""
    signal_all(pid, signal.SIGCONT)
    try:
        yield
    finally:
        signal_all(pid, signal.SIGSTOP)


def signal_all(pid: int, number: signal.Signals) -> None:
    """Signal a process and every process below it, in whatever group; nothing happens to those that have ended."""
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        for process in [leader, *leader.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


@dataclass(frozen=True, slots=True)
class Vitals:
    """Of one process at one moment."""

    rss_mib: float
    descriptors: int
    threads: int


def vitals(process: psutil.Process) -> Vitals:
    """What `process` holds now; psutil.NoSuchProcess when it has ended."""
    with process.oneshot():
        return Vitals(process.memory_info().rss / 2**20, process.num_fds(), process.num_threads())


def child_named(ancestor: int, text: str) -> psutil.Process:
    """The one process below `ancestor` with `text` in its command line; exits when there is not exactly one."""
    found = [process for process in descendants(ancestor) if text in _command_line(process)]
    if len(found) != 1:
        raise SystemExit(f"processes with {text!r} in their command line: got {found}, expected one")
    return found[0]


def _command_line(process: psutil.Process) -> str:
    """Words separated by spaces; empty for a process that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
