"""A state of the code with settings: its files as git has them, run in this environment."""

import io
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...learner.disk import write_folder

_HOUSE = Path(__file__).resolve().parents[2]
#: So that the weights of every version are there when the run has ended.
_KEEP_VERSIONS = {"PACELINE_KEPT_VERSIONS": "1000000"}


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared. Its package is `root`/paceline."""

    name: str  # "before" or "after"
    commit: str
    root: Path
    settings: Mapping[str, str]  # environment variables beside those of this process

    def python(self, *arguments: str) -> list[str]:
        """The command that runs this Python with this side's code, which every process that it starts has as well."""
        own = {**_KEEP_VERSIONS, **self.settings, "PYTHONPATH": str(self.root)}
        return ["env", *(f"{name}={value}" for name, value in own.items()), sys.executable, *arguments]

    def demo_help(self) -> str:
        """What its demo says of its options. SystemExit when another code is run than this side's."""
        found = Path(self._said("-c", "import paceline; print(paceline.__file__)").strip())
        if not found.resolve().is_relative_to((self.root / "paceline").resolve()):
            raise SystemExit(f"{self.name}: got the package {found}, expected one below {self.root}")
        return self._said("-m", "paceline.cli", "demo", "--help")

    def _said(self, *arguments: str) -> str:
        done = subprocess.run(self.python(*arguments), cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{self.name}, {' '.join(arguments)}: {done.stderr or done.stdout}")
        return done.stdout


def checked_out(name: str, revision: str, settings: Mapping[str, str], folder: Path) -> Side:
    """The files of a git revision of this repository below `folder`, written there once.

    They come from `git archive`: no worktree is registered, and what is not committed is not in them. SystemExit when
    there is no such revision.
    """
    commit = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", of=revision).decode().strip()
    root = folder.absolute() / commit[:12]
    if not root.exists():
        with zipfile.ZipFile(io.BytesIO(_git("archive", "--format=zip", commit, of=revision))) as files:
            write_folder(root, lambda place: files.extractall(place / "paceline"))
    return Side(name, commit, root, dict(settings))


def _git(*arguments: str, of: str) -> bytes:
    done = subprocess.run(["git", "-C", str(_HOUSE), *arguments], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode().strip() or "nothing"
        raise SystemExit(f"revision {of!r}: git says {said}, expected a commit of the repository at {_HOUSE}")
    return done.stdout
