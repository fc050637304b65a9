"""The test's side of killable_learner.py: start learners, give them orders, learn how they ended."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("killable_learner.py")

#: The longest that one answer may take; far more than any does.
_ANSWER_LIMIT_S = 120.0


class ForkServer:
    """One process that has loaded what learners need; every learner is forked from it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def ask(self, job: dict[str, Any]) -> int:
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(_ANSWER_LIMIT_S)


class LearnerProcess:
    """One learner and the socket to it. An order that kills the learner raises EOFError."""

    def __init__(self, fork_server: ForkServer, env: dict[str, str], folder: Path) -> None:
        self._fork_server = fork_server
        self._ended: int | None = None
        self.log = folder / "learner.log"
        with socket.socket(socket.AF_UNIX) as listener:
            path = folder / f"line-{os.urandom(4).hex()}"
            listener.bind(str(path))
            listener.listen(1)
            listener.settimeout(_ANSWER_LIMIT_S)
            self.pid = fork_server.ask({"env": env, "line": str(path), "errors": str(self.log)})
            self._line = listener.accept()[0]
        path.unlink()
        self._line.settimeout(_ANSWER_LIMIT_S)
        self._messages = self._line.makefile("rw", encoding="utf-8")

    def order(self, do: str, **fields: Any) -> dict[str, Any]:
        """Give an order and return the answer."""
        self.tell(do, **fields)
        return self.hear()

    def tell(self, do: str, **fields: Any) -> None:
        self._messages.write(json.dumps({"do": do, **fields}) + "\n")
        self._messages.flush()

    def hear(self) -> dict[str, Any]:
        answer = self._messages.readline()
        if not answer:
            raise EOFError(self.log.read_text(encoding="utf-8")[-2000:])
        return json.loads(answer)

    def round(self) -> dict[str, Any]:
        """One round: its report, what it raised, or the point where it pauses."""
        return self.order("round")

    def go_on(self) -> dict[str, Any]:
        """Let a pausing learner end its round."""
        return self.order("go on")

    def end(self) -> int:
        """End it, or find it dead; its exit code, negative for a signal. A second call returns the same."""
        if self._ended is None:
            self._messages.close()
            self._line.close()
            self._ended = self._fork_server.ask({"wait": self.pid})
        return self._ended
