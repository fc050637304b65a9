"""Which releases of SGLang capture supports, and which one is installed. Imports no SGLang."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from ..buffer.errors import CaptureUnavailable

#: Releases on which the hooks and the CPU host were run. On every other one capture, swaps and pacing are off. The
#: first is the default one: `make` without SGLANG and the images take it.
SUPPORTED: Final = ("0.5.23", "0.5.22", "0.5.21")


def installed_release() -> str | None:
    """The installed SGLang's version; None without one."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def check_release() -> str:
    """The installed SGLang's version; CaptureUnavailable when there is none or it is not a supported one."""
    found = installed_release()
    if found is None:
        raise CaptureUnavailable(f"SGLang is not installed: pip install sglang=={SUPPORTED[0]}")
    if found not in SUPPORTED:
        raise CaptureUnavailable(f"SGLang: got version {found}, expected one of {list(SUPPORTED)}")
    return found
