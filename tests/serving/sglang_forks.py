"""A process that has imported SGLang as a scheduler does: `python sglang_forks.py` runs scripts, each in a fork of it.

SGLang's registry patches modules for the life of a process, and its import takes far longer than any of the scripts.
A line of stdin is JSON, {"code": a script, "env": variables it has beside the process's own, "stdout" and "stderr":
files for what it writes}; the answer is a line with its exit code.
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from paceline.serving.cpu_host.defaults import server_env


class SglangForks:
    """The tests' side."""

    def __init__(self, folder: Path) -> None:
        self._files = {name: folder / name for name in ("stdout", "stderr")}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=server_env(["--model-path", "nowhere"], os.environ),
        )

    def run(self, code: str, **env: str) -> str:
        """What a script writes to stdout; it must end well."""
        job = {"code": code, "env": env, **{name: str(file) for name, file in self._files.items()}}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        ended = self._process.stdout.readline()
        said = {name: file.read_text(encoding="utf-8") for name, file in self._files.items()}
        assert ended == "0\n", said["stderr"]
        return said["stdout"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def live(job: dict[str, Any]) -> None:
    for handle, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
    os.environ.update(job["env"])
    tempfile.tempdir = None  # TMPDIR may be another one now
    code = 0
    try:
        exec(compile(job["code"], "<script>", "exec"), {"__name__": "__main__"})
    except BaseException:  # noqa: BLE001 - whatever it is, the test tells it
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    from paceline.serving import hook_targets

    missing = hook_targets.missing_targets()  # imports SGLang as a scheduler does
    assert not missing, missing
    for line in sys.stdin:
        child = os.fork()
        if not child:
            live(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201
    os._exit(0)  # to take all of SGLang down takes seconds


if __name__ == "__main__":
    main()
