"""What Redis itself says: its version, its memory, its disk, and how it is reached."""

from collections.abc import Iterator
from typing import Any

from ...buffer.config import BufferConfig
from ...buffer.errors import PayloadKeyUnusable
from ...buffer.finding import Finding, Level
from ...buffer.redis_client import address, hosts_of
from ...buffer.stream.redis_room import is_replica, read_room, redis_version
from ...buffer.stream.redis_stream import RedisTraceBuffer

#: The first release with every command that paceline uses.
OLDEST = (6, 2)
_REPLICA = (
    "got a replica, expected the primary: servers could deliver no trace and nobody could move a version; point "
    "PACELINE_REDIS_URL at the primary, or at its Sentinels"
)
_HERE = frozenset(("127.0.0.1", "localhost", "::1"))


def memory_and_disk(client: Any, config: BufferConfig) -> Iterator[Finding]:
    """Whether it keeps as many bytes of traces as `config` says, and the board. Raises BufferUnavailable."""
    room = read_room(client)
    version = redis_version(client)
    problem = _too_old(version) or (_REPLICA if is_replica(client) else "") or room.problem(config.max_bytes)
    limit = f"{room.max_bytes} bytes" if room.max_bytes else "no limit of its own"
    answers = f"answers at {address(client)}, has version {version} and {limit}"
    yield Finding("Redis", Level.WRONG if problem else Level.OK, problem or answers)
    if not room.is_append_only and not config.keeps_nothing:
        yield Finding("Redis", Level.NOTE, "forgets board and traces when it restarts: start it with --appendonly yes")


def encryption(client: Any, config: BufferConfig) -> Iterator[Finding]:
    """Whether this machine can decrypt the newest trace; nothing where none is encrypted. Raises BufferUnavailable."""
    try:
        RedisTraceBuffer(client, config).require_key()
    except PayloadKeyUnusable as fault:
        yield Finding("key", Level.WRONG, f"no trace is delivered or read from here: {fault}")
    else:
        if config.payload_key_file:
            yield Finding(
                "key", Level.OK, "traces are encrypted before Redis has them, with a key that opens the newest"
            )


def connection(url: str) -> Finding:
    """Whether anybody on the way could read traces, which are user content."""
    scheme = url.partition(":")[0]
    if scheme in {"rediss", "sentinels"}:
        return Finding("TLS", Level.OK, "the way to Redis is encrypted, and its certificate is verified")
    hosts = hosts_of(url)
    if _HERE.issuperset(hosts):
        return Finding("TLS", Level.OK, "not needed: Redis is on this machine")
    there = ", ".join(sorted(hosts - _HERE))
    text = f"traces, which are user content, travel to {there} unencrypted: use {scheme}s:// (docs/operations.md)"
    return Finding("TLS", Level.NOTE, text)


def _too_old(version: str) -> str:
    parts = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    if len(parts) == 2 and tuple(parts) < OLDEST:
        return f"got version {version}, expected 6.2 or later: paceline needs Redis 6.2 or later"
    return ""
