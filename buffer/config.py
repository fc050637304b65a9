"""BufferConfig: what every process that uses the buffer must agree on."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ConfigError
from .settings.fields import check_fields, configured, setting
from .settings.sources import read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferConfig:
    """Names and bounds of one speculator's buffer. ConfigError when made with a value out of range, naming it."""

    speculator: str = setting("SPECULATOR")
    versions_uri: str = setting("VERSIONS_URI")  # empty: versions are folders that all mount
    max_bytes: int = setting("BUFFER_MAX_BYTES")
    max_age_s: float = setting("BUFFER_MAX_AGE_S")
    claim_idle_ms: int = setting("BUFFER_CLAIM_IDLE_MS")
    retention: str = setting("RETENTION")
    payload_key_file: str | None = setting("PAYLOAD_KEY_FILE")
    group: str = "learners"  # consumer group of the trace stream

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.group or any(c in "{}" or c.isspace() for c in self.group):
            raise ConfigError(f"group: got {self.group!r}, expected a name without {{}} or blanks")

    @property
    def keeps_nothing(self) -> bool:
        """Whether no prompt, token or hidden state may reach a disk."""
        return self.retention == "memory"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "BufferConfig":
        """Read the settings. ConfigError names what cannot be read, what was got and what was expected."""
        return configured(cls, read_settings(environ))
