"""Run a program that starts others, and end it the way it ends them."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


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
