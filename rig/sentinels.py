"""Redis as a fleet runs it: a primary, its replica, and three Sentinels that let the replica take over when it dies."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import redis

from .readiness import free_port, redis_server
from .services import Service

SERVICE: Final = "traces"
#: Of a Redis that only this machine reaches; a URL must quote it.
PASSWORD: Final = "p@ss,w/rd"  # noqa: S105 - see above
_WATCHING: Final = 3
_LIMIT_S: Final = 60.0
#: A killed process loses nothing of what it wrote to its file, so nobody waits for the disk. By default a primary of
#: Redis 7 waits 5 s for further replicas, in which the first one has nothing.
_REDIS: Final = f"""appendonly yes
appendfsync no
save ""
maxmemory-policy noeviction
requirepass "{PASSWORD}"
masterauth "{PASSWORD}"
repl-diskless-sync-delay 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelRedis:
    """What clients are told, and the running processes. Kill the primary, and the replica takes over."""

    url: str
    primary: Service
    replica: Service
    replica_port: int
    sentinels: Sequence[Service]


@contextmanager
def redis_behind_sentinels(folder: Path, *, down_after_s: float = 0.5) -> Iterator[SentinelRedis]:
    """Start all five with their files below `folder`; the replica is a copy, and all know each other, at the start.

    Sentinels take a primary for dead that has not answered for `down_after_s`. PacelineError as Service says.
    """
    primary_port, replica_port, *watching = (free_port() for _ in range(2 + _WATCHING))
    watched = (
        f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} {_WATCHING // 2 + 1}\n"
        f"sentinel auth-pass {SERVICE} {PASSWORD}\n"
        f"sentinel down-after-milliseconds {SERVICE} {round(down_after_s * 1000)}\n"
        f"sentinel failover-timeout {SERVICE} 4000\n"
    )
    primary = _service("primary", folder, primary_port, _REDIS)
    follows = f"replicaof 127.0.0.1 {primary_port}\n"
    replica = _service("replica", folder, replica_port, _REDIS + follows)
    sentinels = [_service(f"sentinel-{port}", folder, port, watched) for port in watching]
    with ExitStack() as stack:
        stack.enter_context(primary)
        stack.enter_context(replica)
        with ThreadPoolExecutor(_WATCHING) as pool:  # each is ready once it has seen the others
            [*pool.map(stack.enter_context, sentinels)]
        hosts = ",".join(f"127.0.0.1:{port}" for port in watching)
        url = f"sentinel://:{quote(PASSWORD, safe='')}@{hosts}/{SERVICE}/2"
        yield SentinelRedis(url=url, primary=primary, replica=replica, replica_port=replica_port, sentinels=sentinels)


def _service(name: str, folder: Path, port: int, text: str) -> Service:
    """A redis-server with a folder of its own, in which a Sentinel rewrites its settings."""
    home = folder.absolute() / name
    home.mkdir(parents=True)
    file = home / "redis.conf"
    # A title would overwrite the environment that /proc shows, by which .ci/run knows what it started.
    file.write_text(f'port {port}\nbind 127.0.0.1\ndir "{home}"\nset-proc-title no\n{text}', encoding="utf-8")
    is_sentinel = name.startswith("sentinel")
    return Service(
        f"Redis {name}",
        [redis_server(), str(file), *(["--sentinel"] if is_sentinel else [])],
        log=home / "redis.log",
        is_ready=lambda _: _sees_all(port) if is_sentinel else _is_ready(port, has_primary=name == "replica"),
        start_limit_s=_LIMIT_S,
    )


def _is_ready(port: int, *, has_primary: bool) -> bool:
    try:
        with redis.Redis(port=port, password=PASSWORD) as client:
            said: dict[str, Any] = client.info("replication")
    except redis.RedisError:
        return False
    return said["master_link_status"] == "up" if has_primary else True


def _sees_all(port: int) -> bool:
    try:
        with redis.Redis(port=port) as client:
            seen: dict[str, Any] = client.sentinel_masters()[SERVICE]
    except (redis.RedisError, KeyError):
        return False
    return bool(seen["num-slaves"] == 1 and seen["num-other-sentinels"] == _WATCHING - 1)
