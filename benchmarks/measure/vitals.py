"""What a process holds: resident memory, descriptors and threads."""

from dataclasses import dataclass

import psutil

from ...rig.processes import descendants


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
