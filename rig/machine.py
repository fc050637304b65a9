"""The machine and the versions that figures were measured with."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version


def machine() -> dict[str, str | int]:
    """Processor, cores, and the versions of Python, torch and SGLang; "absent" for one that is not installed."""
    versions = {package: _installed(package) for package in ("torch", "sglang")}
    return {"processor": _processor(), "cores": os.cpu_count() or 1, "python": platform.python_version(), **versions}


def _processor() -> str:
    """The processor's model name where Linux reports one."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - a kernel file
            named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        named = []
    return named[0] if named else platform.processor() or platform.machine()


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
