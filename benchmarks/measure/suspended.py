"""Processes that are stopped for a while and go on, so that they take nothing from what is measured meanwhile."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil


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
