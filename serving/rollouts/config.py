"""What the trainer's process reads from its environment, and what a server that it starts gets of it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...buffer.config import BufferConfig
from ...buffer.settings.fields import configured, setting
from ...buffer.settings.sources import read_settings


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Where traces and draft versions are; without a Redis URL the trainer knows nothing of drafts."""

    redis_url: str | None = setting("REDIS_URL")
    redis_ca: str | None = setting("REDIS_CA")
    buffer: BufferConfig = field(default_factory=BufferConfig)


def from_env(
    redis_url: str | None = None, speculator: str | None = None, environ: Mapping[str, str] = os.environ
) -> RolloutConfig:
    """Read the settings, in which `redis_url` and `speculator` replace the values if they are given.

    ConfigError names what cannot be read, what was got and what was expected.
    """
    settings = read_settings(environ)
    config = configured(RolloutConfig, settings, buffer=configured(BufferConfig, settings))
    buffer = replace(config.buffer, speculator=speculator or config.buffer.speculator)
    return replace(config, redis_url=redis_url or config.redis_url, buffer=buffer)


def server_env(config: RolloutConfig, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """This process's environment for a server, with the Redis and the speculator of `config`."""
    given = {"PACELINE_SPECULATOR": config.buffer.speculator}
    return {**environ, **given, **({"PACELINE_REDIS_URL": config.redis_url} if config.redis_url else {})}
