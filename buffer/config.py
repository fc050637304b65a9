"""BufferConfig: what every process that enters the post office must agree on, read from the environment once."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from .environment import read_float, read_int
from .errors import ConfigError

#: Field -> the environment key that sets it.
ENV_KEYS = {
    "speculator": "PACELINE_SPECULATOR",
    "group": "PACELINE_BUFFER_GROUP",
    "max_bytes": "PACELINE_BUFFER_MAX_BYTES",
    "max_age_s": "PACELINE_BUFFER_MAX_AGE_S",
    "claim_idle_ms": "PACELINE_BUFFER_CLAIM_IDLE_MS",
}


@dataclass(frozen=True, slots=True)
class BufferConfig:
    """Names and bounds of one speculator's buffer. ConfigError at birth, naming field, key, got and expected."""

    speculator: str = "default"  # one draft and its traffic; part of every Redis key
    group: str = "learners"  # consumer group of the trace stream
    max_bytes: int = 1024**3  # payload bytes kept in the stream
    max_age_s: float = 86_400.0  # traces hold user content: older ones are removed, acked or not
    claim_idle_ms: int = 600_000  # a claimed trace left alone this long is given to whoever claims next

    def __post_init__(self) -> None:
        for field in ("speculator", "group"):
            name = getattr(self, field)
            # Braces, blanks and newlines would move keys to another cluster slot or make them unreadable.
            self._expect(
                field, bool(name) and not any(c in "{}" or c.isspace() for c in name), "a name without {} or blanks"
            )
        self._expect("max_bytes", self.max_bytes > 0, "more than 0")
        self._expect("max_age_s", 0.001 <= self.max_age_s < math.inf, "at least 0.001 seconds, finite")
        self._expect("claim_idle_ms", self.claim_idle_ms >= 0, "0 or more")

    def _expect(self, field: str, fits: bool, expected: str) -> None:
        if not fits:
            raise ConfigError(f"{field} ({ENV_KEYS[field]}): got {getattr(self, field)!r}, expected {expected}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "BufferConfig":
        """Read the keys of ENV_KEYS; an absent or empty one keeps the default. ConfigError names key and bad value."""
        default = cls()
        return cls(
            speculator=environ.get(ENV_KEYS["speculator"]) or default.speculator,
            group=environ.get(ENV_KEYS["group"]) or default.group,
            max_bytes=read_int(environ, ENV_KEYS["max_bytes"], default.max_bytes, minimum=1),
            max_age_s=read_float(environ, ENV_KEYS["max_age_s"], default.max_age_s, minimum=0.001),
            claim_idle_ms=read_int(environ, ENV_KEYS["claim_idle_ms"], default.claim_idle_ms, minimum=0),
        )


def redis_ca(environ: Mapping[str, str] = os.environ) -> str | None:
    """PACELINE_REDIS_CA: the file of the CA that signed Redis' certificate; None leaves it to the system's trust."""
    return environ.get("PACELINE_REDIS_CA") or None


def operator_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """PACELINE_OPERATOR_TOKEN without blanks around it; None when there is none. A secret."""
    return environ.get("PACELINE_OPERATOR_TOKEN", "").strip() or None
