"""A fresh environment with SGLang alone, as a user has it before paceline comes."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from paceline.serving.supported_release import installed_release
from wheel_build import HOUSE

#: What the tests' own run must not pass on: where Python looks for modules, and settings of paceline and SGLang.
_OURS = ("PYTHON", "VIRTUAL_ENV", "PACELINE_", "SGLANG_")


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
        dropped = [word for name in os.environ if name.startswith(_OURS) for word in ("-u", name)]
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
    torch, release = f"torch=={version('torch').partition('+')[0]}", installed_release()
    pip_args = shlex.split(os.environ.get("TORCH_PIP_ARGS", ""))  # as `make setup` takes it
    subprocess.run([HOUSE / ".ci/install_torch", made.folder / "bin/python", torch, *pip_args], check=True)
    made.pip_install("--no-deps", f"sglang=={release}")
    needs = HOUSE / f"serving/cpu_host/requirements-{release}.txt"
    made.pip_install("--no-warn-conflicts", torch, "-r", str(needs))
    return made
