"""How much room a Redis has for traces, by its own settings."""

from dataclasses import dataclass
from typing import Any

import redis

from ..redis_client import translate_redis_errors

#: Redis' own overhead over the bytes of the traces, and what queues, board and deduplication take beside them.
HEADROOM = 1.2


@dataclass(frozen=True, slots=True)
class RedisRoom:
    """What `INFO` says of memory and durability."""

    max_bytes: int  # 0: no limit
    policy: str  # what leaves when the limit is reached; `noeviction` refuses writes
    used_bytes: int
    is_append_only: bool  # whether a restart of Redis keeps what was written

    def problem(self, wanted_bytes: int) -> str:
        """Why `wanted_bytes` of traces have no safe room here, and what to do; empty when they have."""
        needed = int(wanted_bytes * HEADROOM)
        if not self.max_bytes:
            return ""
        if self.policy != "noeviction":
            return (
                f"got maxmemory-policy {self.policy}, expected noeviction: Redis would throw versions and traces away "
                "uncounted; `redis-cli config set maxmemory-policy noeviction`"
            )
        if self.max_bytes < needed:
            return (
                f"got maxmemory {self.max_bytes}, expected at least {needed}, which is {HEADROOM:g} times "
                f"PACELINE_BUFFER_MAX_BYTES ({wanted_bytes}): give Redis more or lower that"
            )
        return ""


def read_room(client: redis.Redis) -> RedisRoom:
    """Ask Redis. Blocks for at most the client's time-outs. BufferUnavailable when it does not answer or may not."""
    with translate_redis_errors(client):
        memory: Any = client.info("memory")
        durability: Any = client.info("persistence")
    return RedisRoom(
        int(memory["maxmemory"]),
        str(memory["maxmemory_policy"]),
        int(memory["used_memory"]),
        bool(durability["aof_enabled"]),
    )


def redis_version(client: redis.Redis) -> str:
    """What `INFO` calls this Redis' version; blocks and raises as `read_room` does."""
    with translate_redis_errors(client):
        server: Any = client.info("server")
    return str(server["redis_version"])


def is_replica(client: redis.Redis) -> bool:
    """Whether this Redis copies another one, so that nothing can be written to it; blocks and raises as `read_room`."""
    with translate_redis_errors(client):
        replication: Any = client.info("replication")
    return bool(replication["role"] == "slave")
