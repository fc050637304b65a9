"""`paceline serve -- <any sglang flags>`: SGLang's own server, plus the CPU host where `--device cpu` asks for it.

The server runs in a process group of its own, so that its scheduler and detokenizer can be ended with it.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final

from ...buffer.errors import ConfigError
from ...buffer.settings.sources import Settings
from ..cpu_host.config import SWITCH, is_switched_on
from ..cpu_host.defaults import default_flags, is_accelerator_present, names_given, server_env, unserved, value_of
from ..supported_release import SUPPORTED, installed_release
from .signals import borrowed_signals

_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOG = logging.getLogger(__name__)

#: What a server does without PACELINE_REDIS_URL, and what to do about it.
NO_REDIS_URL: Final = "capture is off, and swaps with it: set PACELINE_REDIS_URL, for example redis://127.0.0.1:6379/0"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One server process: its whole command line and its whole environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def say_what_is_off(settings: Settings) -> None:
    """Warn of a server that is about to serve as without paceline."""
    if not settings.is_given("REDIS_URL"):
        _LOG.warning("%s", NO_REDIS_URL)


def launch_plan(
    sglang_args: Sequence[str],
    base_env: Mapping[str, str],
    has_accelerator: Callable[[], bool] = is_accelerator_present,
) -> LaunchPlan:
    """Decide how to start SGLang with `sglang_args`; starts nothing.

    With `--device cpu` the CPU host's defaults come before the user's flags (argparse: the last one wins) and
    `base_env` is completed, unless PACELINE_CPU_HOST=0 leaves the CPU to SGLang's own kernels. Otherwise both are
    passed on untouched. Logs a warning when the installed SGLang is not a supported release.
    Raises ConfigError when SGLang is not installed, when no device is named and none but a CPU is here
    (`has_accelerator` is asked only then, and may take seconds), and when a CPU server hides flags in `--config`.
    """
    _check_sglang()
    command = (sys.executable, "-m", "sglang.launch_server")
    if _wants_cpu_host(sglang_args, base_env):
        _refuse_config_file(sglang_args)
        if why := unserved(sglang_args):
            raise ConfigError(why)
        argv = (*command, *default_flags(sglang_args), *sglang_args)
        return LaunchPlan(argv, server_env(sglang_args, base_env))
    if "--device" not in names_given(sglang_args) and not has_accelerator():
        raise ConfigError("no GPU is visible and no --device was given; add `--device cpu` to serve on this CPU")
    return LaunchPlan((*command, *sglang_args), dict(base_env))


def examination_plan(
    sglang_args: Sequence[str],
    base_env: Mapping[str, str],
    has_accelerator: Callable[[], bool] = is_accelerator_present,
) -> LaunchPlan:
    """The process of `paceline doctor`: it resolves `sglang_args` with the defaults that `launch_plan` would give.

    Without flags there is none that names a device, but SGLang is imported, which takes the CPU host without a GPU.
    """
    command = (sys.executable, "-m", f"{__package__}.doctor")
    if _wants_cpu_host(sglang_args, base_env):
        return LaunchPlan((*command, *default_flags(sglang_args), *sglang_args), server_env(sglang_args, base_env))
    if sglang_args or has_accelerator():
        return LaunchPlan((*command, *sglang_args), dict(base_env))
    return LaunchPlan(command, server_env(("--device", "cpu"), base_env))


def run_server(plan: LaunchPlan) -> int:
    """Run the server until it ends; returns its exit code, or 128 + N when signal N ended it.

    Blocks; only for the main thread, whose handlers for SIGTERM, SIGINT and SIGHUP it borrows (a signal that is
    ignored stays ignored). The first of them is passed on as SIGTERM, on which SGLang finishes its requests; a second
    one kills the server's whole process group at once. On return no process of that group is left. The server outlives
    this process only if that is killed by SIGKILL. Raises OSError when the interpreter cannot be started.
    """
    relay = _SignalRelay()
    with borrowed_signals(_ENDING, relay):
        server = subprocess.Popen(plan.argv, env=dict(plan.env), start_new_session=True)
        relay.aim_at(server.pid)
        # Not reaped yet: while the dead leader keeps its id, the group's number cannot belong to anybody else.
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        os.killpg(server.pid, signal.SIGKILL)
        code = server.wait()
    return code if code >= 0 else 128 - code


class _SignalRelay:
    """Answers the first signal by asking a process to end, and the second by killing the process's group."""

    def __init__(self) -> None:
        self._group: int | None = None
        self._received = 0

    def aim_at(self, group: int) -> None:
        """Name the receiver; signals that came before it existed ask it to end now."""
        self._group = group
        if self._received:
            os.kill(group, signal.SIGTERM)

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self._received += 1
        if self._group is None:
            return
        if self._received == 1:
            os.kill(self._group, signal.SIGTERM)
        else:
            os.killpg(self._group, signal.SIGKILL)


def _wants_cpu_host(args: Sequence[str], env: Mapping[str, str]) -> bool:
    return value_of(args, "--device") == "cpu" and is_switched_on(env) is not False


def _refuse_config_file(args: Sequence[str]) -> None:
    if "--config" in names_given(args):
        raise ConfigError(
            "--config hides flags that a CPU server's defaults could override; "
            f"spell them on the command line, or set {SWITCH}=0 to start without the CPU host"
        )


def _check_sglang() -> None:
    found = installed_release()
    if found is None:
        raise ConfigError(
            f"sglang is not installed beside {sys.executable}; "
            f"pip install sglang=={SUPPORTED[0]} (for a CPU: serving/cpu_host/requirements-{SUPPORTED[0]}.txt)"
        )
    if found not in SUPPORTED:
        _LOG.warning(
            "SGLang %s is installed, paceline supports %s: the server runs with capture, swaps and pacing off",
            found,
            ", ".join(SUPPORTED),
        )
