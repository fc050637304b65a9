"""PACELINE_RETENTION=memory: no prompt, token or hidden state reaches a disk.

paceline keeps traces in memory alone: that of servers, of learners and of Redis. What is left to see to is a Redis that
writes its data to its disk, and a process that leaves its memory there when it crashes.
"""

import logging
import resource
from typing import Any, Final

import redis

from .config import BufferConfig
from .errors import ConfigError
from .finding import Finding, Level
from .redis_client import address, translate_redis_errors

_log = logging.getLogger(__name__)

TOPIC: Final = "retention"
#: Setting of Redis -> its value where Redis writes no data to its disk by itself.
_OFF: Final = {"save": "", "appendonly": "no"}


def forbid_core_dumps() -> None:
    """For this process and all that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def redis_retention(client: redis.Redis) -> Finding:
    """Whether Redis writes what it holds to a disk; UNKNOWN where it may not be asked, as a managed one.

    Blocks for one round trip. BufferUnavailable when Redis does not answer.
    """
    with translate_redis_errors(client), client.pipeline(transaction=False) as trip:
        for name in _OFF:
            trip.config_get(name)
        trip.info("replication")
        *replies, replication = trip.execute(raise_on_error=False)
    found = {name: _value(reply, name) for name, reply in zip(_OFF, replies, strict=True)}
    for name, off in _OFF.items():
        if found[name] not in {None, off}:
            return Finding(
                TOPIC,
                Level.WRONG,
                f"Redis at {address(client)}: got {name} {found[name]!r}, expected {off!r} with "
                "PACELINE_RETENTION=memory: it would write traces to its disk, so servers deliver none and no learner "
                f"starts; `redis-cli config set {name} '{off}'`, and the same in its configuration file",
            )
    replicas = _value(replication, "connected_slaves")
    if None in found.values() or replicas is None:
        return _unknown(client, "it does not answer CONFIG GET save, CONFIG GET appendonly and INFO replication")
    if replicas:
        return _unknown(client, f"it has replicas ({replicas}), which have a disk and settings of their own")
    lost = "when it restarts, the board begins anew and traces that wait are lost (docs/operations.md#zero-retention)"
    return Finding(TOPIC, Level.OK, f"memory: Redis writes nothing to a disk; {lost}")


class MemoryOnly:
    """Keeps traces from a Redis that writes to a disk."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._is_told = False

    def require(self) -> None:
        """ConfigError where Redis writes to a disk; one warning where that cannot be told. Blocks for a round trip."""
        found = redis_retention(self._client)
        if found.level is Level.WRONG:
            raise ConfigError(found.sentence)
        if found.level is Level.UNKNOWN and not self._is_told:
            self._is_told = True
            _log.warning("paceline: %s", found.sentence)


def begin(client: redis.Redis, config: BufferConfig) -> None:
    """For a learner's start. ConfigError where nothing may reach a disk and Redis writes to one; blocks on Redis."""
    if config.keeps_nothing:
        forbid_core_dumps()
        MemoryOnly(client).require()


def _value(reply: Any, name: str) -> Any:
    """What Redis says, None where it refuses or has no such setting."""
    return reply.get(name) if isinstance(reply, dict) else None


def _unknown(client: redis.Redis, why: str) -> Finding:
    return Finding(
        TOPIC,
        Level.UNKNOWN,
        f"cannot tell whether Redis at {address(client)} writes traces to a disk, which PACELINE_RETENTION=memory "
        f"forbids: {why}; ask who runs it (docs/operations.md#zero-retention)",
    )
