"""A fresh environment with SGLang alone, as a user has it before paceline comes, and the server started there."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from paceline.rig.readiness import is_healthy
from paceline.rig.services import Service
from paceline.serving.cpu_host.defaults import default_flags, server_env
from paceline.serving.supported_release import installed_release
from wheel_build import HOUSE

#: What the tests' own run must not pass on: where Python looks for modules, and settings of paceline and SGLang.
_OURS = ("PYTHON", "VIRTUAL_ENV", "PACELINE_", "SGLANG_")
#: By which .ci/run finds the processes that a run has left.
_KEPT = ("PACELINE_CI_RUN",)


@dataclass(frozen=True)
class UserEnvironment:
    """A virtual environment and a working directory, both outside the checkout."""

    folder: Path
    home: Path

    @property
    def site(self) -> Path:
        """Where its packages are."""
        return self.folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"

    def command(self, program: str, *arguments: str, settings: Mapping[str, str] | None = None) -> list[str]:
        """The command line of one of its programs, run from the user's folder without the variables of the tests."""
        ours = [name for name in os.environ if name.startswith(_OURS) and name not in _KEPT]
        dropped = [word for name in ours for word in ("-u", name)]
        given = [f"{name}={value}" for name, value in (settings or {}).items()]
        return ["env", "-C", str(self.home), *dropped, *given, str(self.folder / "bin" / program), *arguments]

    def run(
        self, program: str, *arguments: str, settings: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs to its end, however it ends."""
        command = self.command(program, *arguments, settings=settings)
        return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)

    def pip_install(self, *arguments: str) -> None:
        """Install packages; fails with pip's own message."""
        done = self.run("python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments)
        assert done.returncode == 0, done.stderr

    def packages(self) -> dict[str, str]:
        """Versions of what is installed, by name."""
        done = self.run("python", "-m", "pip", "--disable-pip-version-check", "list", "--format", "json")
        return {package["name"]: package["version"] for package in json.loads(done.stdout)}


def make_environment(folder: Path) -> UserEnvironment:
    """Make one below `folder` with torch, SGLang and what `import sglang` needs here, in the versions of the tests."""
    made = UserEnvironment(folder / "venv", folder / "home")
    made.home.mkdir()
    subprocess.run([sys.executable, "-m", "venv", made.folder], check=True)
    torch = f"torch=={version('torch').partition('+')[0]}"
    release = installed_release()
    pip_args = shlex.split(os.environ.get("TORCH_PIP_ARGS", ""))  # as `make setup` takes it
    subprocess.run([HOUSE / ".ci/install_torch", made.folder / "bin/python", torch, *pip_args], check=True)
    made.pip_install("--no-deps", f"sglang=={release}")
    needs = HOUSE / f"serving/cpu_host/requirements-{release}.txt"
    made.pip_install("--no-warn-conflicts", torch, "-r", str(needs))
    return made


def users_flags(models: tuple[Path, Path]) -> list[str]:
    """A Llama with the algorithm and a draft, for which SGLang chooses the rest."""
    target, draft = models
    return ["--model-path", str(target), "--device", "cpu", "--log-level", "warning",
            "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft)]  # fmt: skip


def users_settings(redis_url: str, flags: list[str]) -> dict[str, str]:
    """The one setting that README asks for, and the environment of a machine without a GPU."""
    machine = server_env(flags, {"OMP_NUM_THREADS": "1"})
    return {"PACELINE_REDIS_URL": redis_url, **{name: machine[name] for name in machine if name != "PYTHONPATH"}}


def sglang_server(
    user: UserEnvironment, program: Sequence[str], flags: list[str], settings: dict[str, str], port: int, log: Path
) -> Service:
    """SGLang started by `program`, with the user's flags after the machine's."""
    words = [*program, "--host", "127.0.0.1", "--port", str(port), *default_flags(flags), *flags]
    command = user.command(*words, settings=settings)
    return Service("SGLang server", command, log=log, is_ready=lambda _: is_healthy(port), start_limit_s=240.0)
