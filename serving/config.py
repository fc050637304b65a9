"""Settings of SGLang's processes and of the courier, read once, when the plugin starts."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..buffer.config import BufferConfig
from ..buffer.settings.fields import as_environment, check_fields, configured, setting
from ..buffer.settings.kinds import PacingName
from ..buffer.settings.sources import read_settings
from ..buffer.settings.table import FIRST_VERSION, FOLLOW
from ..buffer.stream.feature_rows import FeatureDtype
from .wire.request_forward import TeacherWidth

#: Where replay cannot judge a draft and nothing else was set: long enough for most requests to end within a turn.
CANARY_TURN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """One replica. Without a Redis URL nothing is captured and nothing is swapped."""

    redis_url: str | None = setting("REDIS_URL")
    buffer: BufferConfig = field(default_factory=BufferConfig)
    replica: str = setting("REPLICA")
    target: str = setting("TARGET")
    target_version: str = setting("TARGET_VERSION", default=FIRST_VERSION)
    redis_ca: str | None = setting("REDIS_CA")
    draft_version: int = setting("DRAFT_VERSION")
    cache_dir: Path = setting("CACHE_DIR")
    versions_cache_bytes: int = setting("VERSIONS_CACHE_BYTES")
    teacher_top_k: int = setting("TEACHER_TOP_K")
    capture_features: bool = setting("CAPTURE_FEATURES")
    feature_format: str = setting("FEATURE_FORMAT")
    sample_rate: float = setting("SAMPLE_RATE")
    capture_memory_bytes: int = setting("CAPTURE_MEMORY_BYTES")
    trace_tokens: int = setting("TRACE_TOKENS")
    canary_requests: int = setting("CANARY_REQUESTS")
    canary_turn_s: float | None = setting("CANARY_TURN_S")  # None: the plugin decides; see CANARY_TURN_S
    stagger_s: float = setting("STAGGER_S")
    pacing: PacingName = setting("PACING")
    pacing_costs: str = setting("PACING_COSTS")
    catch_up_bytes: int | None = setting("CATCH_UP_BYTES")  # None: the server decides; see sglang_why_not.py

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def teacher(self) -> TeacherWidth:
        """Teacher entries per verified node."""
        return TeacherWidth(self.teacher_top_k)

    @property
    def quantised_to(self) -> FeatureDtype | None:
        """What the features of traces are quantised to; None: they stay as captured."""
        return {"int8": FeatureDtype.INT8, "fp8": FeatureDtype.E4M3}.get(self.feature_format)

    @property
    def queue_bytes(self) -> int:
        """Captured forwards that may wait for the courier."""
        return self.capture_memory_bytes // 2

    @property
    def backlog_bytes(self) -> int:
        """Traces that may wait while Redis is away."""
        return self.capture_memory_bytes // 2

    @property
    def context_tokens(self) -> int:
        """Context at the start of a trace that continues a request."""
        return self.trace_tokens // 4


def from_env(environ: Mapping[str, str] = os.environ) -> ServingConfig:
    """Read the settings. ConfigError names what cannot be read, what was got and what was expected."""
    settings = read_settings(environ)
    buffer = configured(BufferConfig, settings)
    config = configured(ServingConfig, settings, buffer=buffer)
    # The learner's, in a file or an environment that both read.
    return replace(config, target_version=FIRST_VERSION) if config.target_version == FOLLOW else config


def unknown_names(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return a sentence for each name that is no setting. ConfigError when paceline.toml cannot be read."""
    return read_settings(environ).unknown


def courier_env(settings: ServingConfig, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return this process's environment with `settings` written out.

    A courier started later has the same settings then, whatever has become of paceline.toml.
    """
    given = {**as_environment(settings), **as_environment(settings.buffer)}
    return {**environ, **given, "PACELINE_CONFIG": os.devnull}
