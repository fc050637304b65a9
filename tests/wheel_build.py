"""Builds wheels from copies of the checkout, which setuptools writes to."""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((HOUSE / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = {package.split(".")[1] for package in PROJECT["tool"]["setuptools"]["packages"] if "." in package}
#: All that the wheel of the whole checkout is built from.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "__init__.py", "cli.py", *sorted(FOLDERS))


def copy_tree(names: Iterable[str], to: Path) -> Path:
    """Copy files and folders of the checkout, without caches."""
    to.mkdir()
    for name in names:
        if (HOUSE / name).is_dir():
            shutil.copytree(HOUSE / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        elif (HOUSE / name).exists():
            shutil.copy(HOUSE / name, to / name)
    return to


def build_wheel(source: Path, out: Path) -> Path:
    """Build the wheel of `source` into the folder `out`; its file. Needs no index: setuptools is that of the tests."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    return wheel
