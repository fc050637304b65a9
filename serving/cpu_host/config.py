"""The one switch of the CPU host."""

import os
from collections.abc import Mapping

from ...buffer.settings.sources import read_settings

SWITCH = "PACELINE_CPU_HOST"


def is_switched_on(environ: Mapping[str, str]) -> bool | None:
    """What PACELINE_CPU_HOST says; None where it is not set. ConfigError on a value that is neither 0 nor 1."""
    switch: bool | None = read_settings(environ).value("CPU_HOST")
    return switch


def is_wanted_here() -> bool:
    """Whether this process runs on the CPU host. ConfigError on a malformed switch."""
    return is_switched_on(os.environ) is True
