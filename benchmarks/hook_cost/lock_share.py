"""Who holds the interpreter lock of SGLang's scheduler process while it serves, by py-spy's samples."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

RATE = 500  # samples per second


def lock_shares(pid: int, folder: Path, seconds: int) -> dict[str, float]:
    """Share of the samples in which each thread of the process held the lock; blocks for `seconds`.

    The rest to 1 are samples in which none held it. SystemExit where py-spy is missing or may not
    look into the process.
    """
    raw = folder / "lock.txt"
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if program is None:
        raise SystemExit("py-spy: got none on PATH, expected one; `pip install py-spy`")
    asked = ["record", "--pid", str(pid), "--gil", "--threads", "--nonblocking", "--format", "raw", "--rate", str(RATE)]
    done = subprocess.run(
        [program, *asked, "--duration", str(seconds), "--output", str(raw)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"py-spy: got {done.stderr.strip()[-300:]}, expected samples; it needs the right to ptrace")
    return shares(raw.read_text(encoding="utf-8"), seconds * RATE)


def shares(raw: str, samples: int) -> dict[str, float]:
    """From py-spy's raw form: a line is the stack, its first frame the thread, and how many samples had it."""
    held: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        thread = re.sub(r'^thread \(\w+\): ?|"', "", stack.partition(";")[0])
        held[thread] += int(count)
    return {thread: count / samples for thread, count in held.most_common()}
