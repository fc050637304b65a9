"""What figures were measured on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version


def machine() -> dict[str, str | int]:
    """What the numbers were measured on."""
    versions = {package: _installed(package) for package in ("torch", "sglang")}
    return {"processor": _processor(), "cores": os.cpu_count() or 1, "python": platform.python_version(), **versions}


def _processor() -> str:
    """The processor's own name where Linux tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - no file of ours
            named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        named = []
    return named[0] if named else platform.processor() or platform.machine()


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
