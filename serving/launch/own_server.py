"""A server that this process starts as `paceline serve` does, asks, and ends."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import httpx

from ...buffer.errors import PacelineError
from .server import launch_plan

_HOST: Final = "127.0.0.1"
_POLL_S = 0.2
_HEALTH_S = 30.0
#: SGLang finishes its requests after SIGTERM; whatever of its process group is left then is killed.
_STOP_S = 15.0


class OwnServer:
    """One server on this machine, in a process group of its own; its output goes where this process's goes.

    It outlives this process only if that is killed by SIGKILL.
    """

    def __init__(self, flags: Sequence[str], port: int, env: Mapping[str, str]) -> None:
        """Start it with `flags` on `port`, whatever they say of host and port. Raises as `launch_plan` does."""
        plan = launch_plan([*flags, "--host", _HOST, "--port", str(port)], env)
        self.url = f"http://{_HOST}:{port}"
        self._process = subprocess.Popen(plan.argv, env=dict(plan.env), start_new_session=True)

    def wait_until_ready(self, limit_s: float) -> None:
        """Block until the server has generated a token. PacelineError when it ends before, or needs over `limit_s`."""
        began_s = time.monotonic()
        while not self._is_healthy():
            code = self._process.poll()
            waited_s = time.monotonic() - began_s
            if code is not None:
                raise PacelineError(
                    f"{self.url}: got exit code {code} while starting, expected a server; see its output"
                )
            if waited_s > limit_s:
                raise PacelineError(f"{self.url}: got no token after {waited_s:.0f} s, expected one in {limit_s:.0f} s")
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
