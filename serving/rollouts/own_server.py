"""A server that the trainer's process starts as `paceline serve` does, and ends."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import httpx

from ...buffer.errors import ConfigError, RolloutFailed
from ..cpu_host.defaults import names_given
from ..launch.server import launch_plan

_HOST: Final = "127.0.0.1"
_POLL_S = 0.2
_HEALTH_S = 30.0
#: SGLang finishes its requests after SIGTERM; whatever of its process group is left then is killed.
_STOP_S = 15.0
#: Flags that `Rollouts.serve` gives itself.
_OURS = ("--model-path", "--speculative-draft-model-path", "--host", "--port")


class OwnServer:
    """One server on this machine, in a process group of its own; its output goes where this process's goes.

    It outlives this process only if that is killed by SIGKILL.
    """

    def __init__(self, model: str, draft: str, *, flags: Sequence[str], port: int, env: Mapping[str, str]) -> None:
        given = sorted(set(_OURS) & set(names_given(flags)))
        if given:
            raise ConfigError(
                f"flags of the server: got {', '.join(given)}, expected others; serve() gives these itself"
            )
        plan = launch_plan(serve_flags(model, draft, flags, port), env)
        self.url = f"http://{_HOST}:{port}"
        self._process = subprocess.Popen(plan.argv, env=dict(plan.env), start_new_session=True)

    def wait_until_ready(self, limit_s: float) -> None:
        """Block until the server has generated a token. RolloutFailed when it ends before, or needs over `limit_s`."""
        began_s = time.monotonic()
        while not self._is_healthy():
            code = self._process.poll()
            waited_s = time.monotonic() - began_s
            if code is not None:
                raise RolloutFailed(
                    f"{self.url}: got exit code {code} while starting, expected a server; see its output"
                )
            if waited_s > limit_s:
                raise RolloutFailed(f"{self.url}: got no token after {waited_s:.0f} s, expected one in {limit_s:.0f} s")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End the server and everything it started; blocks until they are gone."""
        self._process.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _is_healthy(self) -> bool:
        if self._process.poll() is not None:
            return False
        try:
            return httpx.get(f"{self.url}/health", timeout=_HEALTH_S, trust_env=False).is_success
        except httpx.HTTPError:
            return False


def serve_flags(model: str, draft: str, flags: Sequence[str], port: int) -> list[str]:
    """SGLang's flags: the target, the draft as EAGLE-3 unless `flags` name another algorithm, then `flags`."""
    ours = {
        "--model-path": model,
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": draft,
        "--host": _HOST,
        "--port": str(port),
    }
    return [*(word for flag in ours.items() for word in flag), *flags]
