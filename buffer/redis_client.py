"""The door to Redis: how a client is made, and how its exceptions become BufferUnavailable.

The two clocks of a failure are here as well: a dead Redis is noticed within TIMEOUT_S, and nothing is retried behind
the caller's back, because a repeated append would store its traces twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from .errors import BufferUnavailable, ConfigError

#: Longest wait for one connection and for one reply to arrive. Redis answers within milliseconds; two seconds also
#: cover a slow network, and a courier or learner that waits longer is better off counting the failure.
TIMEOUT_S = 2.0

#: What the message of an exception points to; the first class that fits.
_NEXT: tuple[tuple[tuple[type[RedisError], ...], str], ...] = (
    ((AuthenticationError, NoPermissionError), "check user and password in PACELINE_REDIS_URL and the user's ACL"),
    ((BusyLoadingError,), "Redis is reading its data from disk; try again in a moment"),
    ((redis.ConnectionError, redis.TimeoutError), "start Redis or correct PACELINE_REDIS_URL"),
)

#: What an error reply means when its class does not say it.
_NEXT_BY_TEXT = (
    ("'maxmemory'", "give Redis more maxmemory or lower PACELINE_BUFFER_MAX_BYTES"),
    ("nknown command", "paceline needs Redis 6.2 or later"),
    ("Unknown Redis command", "paceline needs Redis 6.2 or later"),
    ("read only replica", "point PACELINE_REDIS_URL at the primary, not at a replica"),
    ("NOGROUP", "somebody deleted the stream at this moment; try again"),
    ("WRONGTYPE", "another program uses a key of buffer/keys.py; give paceline its own database or speculator name"),
)


def client_for(url: str) -> redis.Redis:
    """Return a client for `url` (redis://, rediss:// or unix://); nothing is connected yet.

    Raises ConfigError, without the password, when `url` is malformed.
    """
    try:
        return redis.Redis.from_url(
            url,
            # Replies are read as RESP2 shapes, bytes everywhere; redis-py and the server would else negotiate both.
            protocol=2,
            decode_responses=False,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        # `from None`: the cause would print the url with its password.
        raise ConfigError(
            f"PACELINE_REDIS_URL: got {masked(url)}, expected redis://host:port/db ({type(error).__name__})"
        ) from None


def connect(url: str) -> redis.Redis:
    """Return a client for `url` that has answered one PING.

    Blocks up to twice TIMEOUT_S. Raises ConfigError when `url` is malformed and BufferUnavailable when Redis does not
    answer; neither message holds the password.
    """
    client = client_for(url)
    with redis_door(client):
        client.ping()
    return client


@contextmanager
def redis_door(client: redis.Redis) -> Iterator[None]:
    """Translate every exception of redis-py inside the body to BufferUnavailable, saying where and what to do next."""
    try:
        yield
    except RedisError as error:
        raise BufferUnavailable(f"Redis at {address(client)}: {error}; {_next_step(error)}") from error


def load_script(client: redis.Redis, file_name: str) -> Any:
    """Return the Lua script that lies beside this file, as redis-py's callable; sent again when the server lost it."""
    return client.register_script(Path(__file__).with_name(file_name).read_text(encoding="utf-8"))


def refuse_text_client(client: redis.Redis) -> None:
    """Raise ConfigError for a client with decode_responses=True: traces are bytes."""
    if client.get_encoder().decode_responses:
        raise ConfigError("Redis client: got decode_responses=True, expected False; make it with redis_client.connect")


def address(client: redis.Redis) -> str:
    """Where `client` connects to, without user or password."""
    settings = client.get_connection_kwargs()
    if "path" in settings:
        return f"unix://{settings['path']}"
    return f"redis://{settings.get('host')}:{settings.get('port')}/{settings.get('db', 0)}"


def masked(url: str) -> str:
    """`url` with its password, and whatever follows a question mark, replaced by ``***``."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a malformed url"
    user, at, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    return f"{parts.scheme}://{name + ':***@' if at else ''}{host}{parts.path}{'?***' if parts.query else ''}"


def _next_step(error: RedisError) -> str:
    for kinds, step in _NEXT:
        if isinstance(error, kinds):
            return step
    if isinstance(error, ResponseError):
        return next((step for mark, step in _NEXT_BY_TEXT if mark in str(error)), "see the Redis log")
    return "see the Redis log"
