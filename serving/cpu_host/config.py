"""The one environment switch of the CPU host."""

import os
from collections.abc import Mapping

from ...buffer.errors import ConfigError

SWITCH = "PACELINE_CPU_HOST"


def is_switched_on(environ: Mapping[str, str]) -> bool | None:
    """What PACELINE_CPU_HOST says: True for 1, False for 0, None where it is absent or empty.

    Raises ConfigError on any other value.
    """
    value = environ.get(SWITCH, "")
    if value not in ("", "0", "1"):
        raise ConfigError(f"{SWITCH} is {value!r}, expected 0 or 1; unset it to let `--device cpu` decide")
    return None if value == "" else value == "1"


def is_wanted_here() -> bool:
    """Whether this very process was told to be a CPU host. Raises ConfigError on a malformed switch."""
    return is_switched_on(os.environ) is True
