"""What a process holds: resident memory, descriptors and threads, as Linux tells them."""

import os
from dataclasses import dataclass
from pathlib import Path

from ...rig.processes import descendants

PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True, slots=True)
class Vitals:
    """Of one process at one moment."""

    rss_mib: float
    descriptors: int
    threads: int


def vitals(pid: int) -> Vitals:
    """Read /proc; OSError when the process has gone."""
    proc = Path("/proc") / str(pid)
    rss_pages = int((proc / "statm").read_text().split()[1])
    status = (proc / "status").read_text().splitlines()
    threads = next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
    return Vitals(rss_pages * PAGE_MIB, len(list((proc / "fd").iterdir())), threads)


def child_named(ancestor: int, word: str) -> int:
    """The one process below `ancestor` with `word` in its command line; exits when there is not exactly one."""
    found = []
    for pid in descendants(ancestor):
        try:
            is_it = word in (Path("/proc") / str(pid) / "cmdline").read_text()
        except OSError:  # it has ended meanwhile
            continue
        found += [pid] if is_it else []
    if len(found) != 1:
        raise SystemExit(f"processes with {word!r} in their command line: got {found}, expected one")
    return found[0]
