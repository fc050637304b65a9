"""How `make setup` picks Python and torch, with stand-ins that only record their arguments."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"
CPU_INDEX = "--retries 1 --timeout 15 --index-url https://download.pytorch.org/whl/cpu"
PIP = "-m pip --disable-pip-version-check install --quiet"


def program(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


def installed(tmp_path: Path, offered: str, *options: str, has_gpu: bool = False, cpu_index_code: int = 0) -> list[str]:
    """Installing commands of install_torch when pip would take the file `offered`."""
    tools = tmp_path / "tools"
    log = tmp_path / "log"
    python = program(
        tools,
        "fake-python",
        f'case "$*" in *--dry-run*) echo \'  "url": "https://x/{offered}",\'; exit 0;; esac',
        f'echo "$*" >> {shlex.quote(str(log))}',
        f'case "$*" in *whl/cpu*) exit {cpu_index_code};; esac',
    )
    for name in ("bash", "grep", "env", "sh"):
        (tools / name).symlink_to(shutil.which(name))
    if has_gpu:
        program(tools, "nvidia-smi")
    command = [HOUSE / ".ci/install_torch", python, TORCH, *options]
    subprocess.run(command, check=True, env={"PATH": str(tools)}, capture_output=True)
    return [line.removeprefix(f"{PIP} ") for line in log.read_text().splitlines()]


CUDA = "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"
CPU = "torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl"


@pytest.mark.parametrize(
    ("offered", "options", "changes", "expected"),
    [
        (CUDA, (), {}, [f"{CPU_INDEX} {TORCH}"]),
        (CUDA, (), {"cpu_index_code": 1}, [f"{CPU_INDEX} {TORCH}", TORCH]),
        (CUDA, (), {"has_gpu": True}, [TORCH]),
        (CUDA, ("--index-url", "https://mine"), {}, [f"--index-url https://mine {TORCH}"]),
        (CPU, (), {}, [TORCH]),
        (CPU.replace("%2B", "+"), (), {}, [TORCH]),
    ],
    ids=["cuda", "index-out-of-reach", "gpu", "chosen-by-hand", "cpu", "cpu-plain"],
)
def test_torch_comes_without_cuda_where_no_gpu_is(
    tmp_path: Path, offered: str, options: tuple[str, ...], changes: dict, expected: list[str]
) -> None:
    assert installed(tmp_path, offered, *options, **changes) == expected
