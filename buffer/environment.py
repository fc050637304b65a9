"""Numbers from an environment mapping, with errors that name the key, what was got and what was expected."""

import math
from collections.abc import Mapping

from .errors import ConfigError


def read_int(env: Mapping[str, str], key: str, default: int, *, minimum: int | None = None) -> int:
    """Integer at `key`, or `default` when it is absent or empty; ConfigError when it is no integer >= `minimum`."""
    raw = env.get(key, "")
    if not raw:
        return default
    try:
        value = int(raw)
    except ValueError:
        raise ConfigError(f"{key}: got {raw!r}, expected an integer") from None
    if minimum is not None and value < minimum:
        raise ConfigError(f"{key}: got {value}, expected at least {minimum}")
    return value


def read_float(env: Mapping[str, str], key: str, default: float, *, minimum: float = -math.inf) -> float:
    """Finite number at `key`, or `default` when absent or empty; ConfigError when it is no number >= `minimum`."""
    raw = env.get(key, "")
    if not raw:
        return default
    try:
        value = float(raw)
    except ValueError:
        raise ConfigError(f"{key}: got {raw!r}, expected a number") from None
    if not (math.isfinite(value) and value >= minimum):
        bound = f" of at least {minimum}" if math.isfinite(minimum) else ""
        raise ConfigError(f"{key}: got {value}, expected a finite number{bound}")
    return value
