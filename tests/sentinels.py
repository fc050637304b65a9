"""A primary, its replica and three Sentinels on this machine, all real."""

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis
from paceline.rig.readiness import free_port, redis_server
from waiting import until

_REDIS = 'port {port}\nbind 127.0.0.1\nsave ""\nrequirepass "p@ss,w/rd"\nmasterauth "p@ss,w/rd"\n'
_REDIS += "repl-diskless-sync-delay 0\n"  # of Redis 7 and Valkey 5 s, in which the replica has nothing
_PASSWORD = "p@ss,w/rd"
_QUOTED = "p%40ss%2Cw%2Frd"
_SENTINEL = """port {port}
bind 127.0.0.1
sentinel monitor traces 127.0.0.1 {primary} 2
sentinel auth-pass traces p@ss,w/rd
sentinel down-after-milliseconds traces 500
sentinel failover-timeout traces 4000
"""


@dataclass(frozen=True)
class Sentinels:
    """What a client is told, the primary to be killed, and the port of the replica that takes over."""

    url: str
    primary: "subprocess.Popen[bytes]"
    replica: int

    def cut_off(self) -> None:
        """From now on the replica gets nothing of what the primary is given: what is written then dies with that."""
        with redis.Redis(port=self.replica, password=_PASSWORD) as replica:
            replica.config_set("masterauth", "none")
            replica.client_kill_filter(_type="master")
            until(lambda: replica.info("replication")["master_link_status"] == "down", "the replica to be cut off")

    def kill_primary(self) -> None:
        """Once it is dead, Sentinels make the replica the primary."""
        self.primary.kill()
        self.primary.wait()


@contextlib.contextmanager
def sentinels(folder: Path) -> Iterator[Sentinels]:
    """Start them in `folder`, and end with all of them dead; they know each other when the body begins."""
    primary, replica, *watching = (free_port() for _ in range(5))
    with contextlib.ExitStack() as stack:
        first = _start(folder / "primary", _REDIS.format(port=primary))
        texts = {"replica": _REDIS.format(port=replica) + f"replicaof 127.0.0.1 {primary}\n"}
        others = [_start(folder / name, text) for name, text in texts.items()]
        others += [
            _start(folder / f"sentinel-{port}", _SENTINEL.format(port=port, primary=primary), "--sentinel")
            for port in watching
        ]
        for process in (first, *others):
            stack.callback(process.wait)
            stack.callback(process.kill)
        until(lambda: all(map(_sees_all, watching)), "the Sentinels to know each other and the replica")
        with redis.Redis(port=replica, password=_PASSWORD) as copying:
            until(lambda: copying.info("replication")["master_link_status"] == "up", "the replica to be a copy")
        hosts = ",".join(f"127.0.0.1:{port}" for port in watching)
        yield Sentinels(f"sentinel://:{_QUOTED}@{hosts}/traces/2", first, replica)


def _start(home: Path, text: str, *flags: str) -> "subprocess.Popen[bytes]":
    """A redis-server with a folder of its own: a Sentinel rewrites its file."""
    home.mkdir(parents=True)
    (home / "redis.conf").write_text(text)
    return subprocess.Popen([redis_server(), home / "redis.conf", *flags], cwd=home, stdout=subprocess.DEVNULL)


def _sees_all(port: int) -> bool:
    try:
        with redis.Redis(port=port) as client:
            seen = client.sentinel_masters()["traces"]
            return seen["num-slaves"] == 1 and seen["num-other-sentinels"] == 2
    except (redis.RedisError, KeyError):
        return False
