"""How a Redis client is made, and how its exceptions become BufferUnavailable.

TLS is always complete: with rediss:// the server's certificate and name are verified against the system's trust and
PACELINE_REDIS_CA alone, and no option of a URL can change that. User and password are in no setting that a repr, a
log or an error would show.

A dead Redis is noticed within TIMEOUT_S, and nothing is retried on the caller's behalf. The caller knows how long it
may block and what to do meanwhile (the courier keeps a backlog, the learner's next round is scheduled), and redis-py
would repeat every command alike: append is idempotent by trace_id, but a repeated forgive or number counts twice, and
a repeated ack reports that nothing was pending.
"""

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.credentials import UsernamePasswordCredentialProvider
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

from .errors import BufferUnavailable, ConfigError
from .plain_text import masked
from .redis_sentinel import SentinelUrl, is_sentinel

#: Longest wait for a connection, and for a reply. Redis answers within milliseconds; two seconds also cover a slow
#: network, and a courier or learner that waits longer is better off counting the failure.
TIMEOUT_S = 2.0

#: Options that may follow the ``?`` of a URL, by scheme. Next to a host there is nothing left for them to say, they
#: would loosen what this module promises, and Celery, which gets the same URL, takes none.
_OPTIONS = {"unix": frozenset({"db", "username", "password"})}

#: Scheme without TLS -> the same with it.
_WITH_TLS = {"redis": "rediss", "sentinel": "sentinels"}

_NO_CLUSTER = "expected a Redis that is none (cluster-enabled no), alone or behind Sentinels: Celery works on no other"

#: What HELLO calls the mode of a server -> why it is refused: commands would fail on it, or reach only some keys.
_REFUSED_MODES = {
    b"cluster": f"got a node of a Redis Cluster, {_NO_CLUSTER}",
    b"sentinel": "got a Sentinel, expected Redis itself, or sentinel://host:port,host:port/service/db",
}

#: Class of an exception -> what to do next; the first that fits counts.
_NEXT: tuple[tuple[tuple[type[RedisError], ...], str], ...] = (
    ((AskError, ClusterError, ClusterCrossSlotError), f"this is a node of a Redis Cluster, {_NO_CLUSTER}"),
    ((AuthenticationError, NoPermissionError), "check user and password in PACELINE_REDIS_URL and the user's ACL"),
    ((BusyLoadingError,), "Redis is reading its data from disk; try again in a moment"),
    ((redis.ConnectionError, redis.TimeoutError), "start Redis or correct PACELINE_REDIS_URL"),
)

#: A plain port answers a TLS handshake with an error, or not at all.
_TLS_PORT = "give PACELINE_REDIS_URL the TLS port of Redis"

#: Text of a failed TLS handshake -> what to do next; redis-py names the cause in the text alone.
_NEXT_BY_TLS = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "name the CA's file in PACELINE_REDIS_CA, and the host in PACELINE_REDIS_URL as the certificate does",
    ),
    ("[SSL", _TLS_PORT),
)

#: Text of an error reply -> what to do next, where its class does not tell.
_NEXT_BY_TEXT = (
    ("'maxmemory'", "give Redis more maxmemory or lower PACELINE_BUFFER_MAX_BYTES"),
    ("nknown command", "paceline needs Redis 6.2 or later"),
    ("Unknown Redis command", "paceline needs Redis 6.2 or later"),
    ("read only replica", "point PACELINE_REDIS_URL at the primary, not at a replica"),
    ("not allowed in cluster mode", f"this is a node of a Redis Cluster, {_NO_CLUSTER}"),
    ("DB index is out of range", "name a database that Redis has at the end of PACELINE_REDIS_URL (`databases`)"),
    ("NOGROUP", "the stream was deleted at this moment; try again"),
    ("WRONGTYPE", "another program uses a key of buffer/keys.py; give paceline its own database or speculator name"),
)


def client_for(url: str, ca_file: str | None = None, *, timeout_s: float = TIMEOUT_S) -> redis.Redis:
    """Return a client for `url` (redis://, rediss://, unix://, sentinel:// or sentinels://); nothing is connected yet.

    `timeout_s` bounds the wait for a connection, and for each reply. Raises ConfigError, without the password, when
    `url` is malformed or tls_settings refuses it.
    """
    tls = tls_settings(url, ca_file)
    if is_sentinel(url):
        return SentinelUrl.parse(url).client(tls, timeout_s)
    try:
        client = redis.Redis.from_url(
            url,
            # Replies are read as RESP2 shapes and bytes; otherwise redis-py and the server would negotiate both.
            protocol=2,
            decode_responses=False,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            redis_connect_func=_greet,
            **tls,
        )
    except ValueError as error:
        # `from None`: the cause would print the url with its password.
        raise _malformed(url, error) from None
    _hide_credentials(client)
    return client


def tls_settings(url: str, ca_file: str | None = None) -> dict[str, Any]:
    """TLS of `url` as keyword arguments of redis-py's SSLConnection, for Celery's `broker_use_ssl` too; {} without TLS.

    Celery needs them: for a bare rediss:// it verifies nothing. The certificates in `ca_file` are trusted beside
    the system's. Raises ConfigError when that file holds none, when it is given and `url` is redis://, and for options
    in `url`, except those of unix://.
    """
    try:
        if is_sentinel(url):
            SentinelUrl.parse(url)
        else:
            _refuse_options(url)
    except ValueError as error:
        raise _malformed(url, error) from None
    scheme = url.partition(":")[0]
    if ca_file and scheme in _WITH_TLS:
        raise ConfigError(
            f"PACELINE_REDIS_URL: got {scheme}:// with PACELINE_REDIS_CA set, expected {_WITH_TLS[scheme]}:// for TLS"
        )
    if scheme not in _WITH_TLS.values():
        return {}
    verified = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    return {**verified, "ssl_ca_certs": _with_certificates(ca_file)} if ca_file else verified


def broker_url(url: str) -> str:
    """`url` as Celery's broker takes it: unix:// and Sentinels have other forms; user, password and database stay."""
    if is_sentinel(url):
        return SentinelUrl.parse(url).broker_url
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url.rstrip("/")  # redis-py takes a / after the database for nothing, Celery for a part of its number
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    user, password = (
        quote(unquote(in_host or ""), safe="") or quote(options.get(name, ""), safe="")
        for name, in_host in (("username", parts.username), ("password", parts.password))
    )
    who = f"{user}:{password}@" if user or password else ""
    return f"redis+socket://{who}{parts.path}?virtual_host={options.get('db', 0)}"


def hosts_of(url: str) -> frozenset[str]:
    """The hosts that a URL which client_for takes names; none for a socket."""
    if is_sentinel(url):
        return frozenset(host for host, _ in SentinelUrl.parse(url).sentinels)
    host = urlsplit(url).hostname
    return frozenset((host,) if host else ())


def broker_options(url: str, ca_file: str | None = None, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """What Celery's `broker_transport_options` need for `url`; {} but for Sentinels. Raises as client_for does."""
    if not is_sentinel(url):
        return {}
    return SentinelUrl.parse(url).broker_options(tls_settings(url, ca_file), timeout_s)


def connect(url: str, ca_file: str | None = None, *, timeout_s: float = TIMEOUT_S) -> redis.Redis:
    """Return a client for `url`, as client_for does, that has answered one PING.

    Blocks up to twice `timeout_s`. Raises ConfigError when `url` is malformed and BufferUnavailable when Redis does not
    answer; neither message holds the password.
    """
    client = client_for(url, ca_file, timeout_s=timeout_s)
    try:
        with translate_redis_errors(client):
            client.ping()
    except BufferUnavailable:
        client.close()  # a server that answers with an error keeps the connection
        raise
    return client


@contextmanager
def translate_redis_errors(client: redis.Redis) -> Iterator[None]:
    """Translate every exception of redis-py inside the body to BufferUnavailable, saying where and what to do next."""
    try:
        yield
    except RedisError as error:
        raise BufferUnavailable(f"Redis at {address(client)}: {error}; {_next_step(client, error)}") from error


def load_script(client: redis.Redis, path: Path) -> Any:
    """Return the Lua script in the file `path` as redis-py's callable; sent again if the server lost it."""
    return client.register_script(path.read_text(encoding="utf-8"))


def refuse_text_client(client: redis.Redis) -> None:
    """Raise ConfigError for a client with decode_responses=True: traces are bytes."""
    if client.get_encoder().decode_responses:
        raise ConfigError("Redis client: got decode_responses=True, expected False; make it with redis_client.connect")


def address(client: redis.Redis) -> str:
    """Where `client` connects to, without user or password."""
    settings = client.get_connection_kwargs()
    if isinstance(client.connection_pool, SentinelConnectionPool):
        return f"{client.connection_pool.service_name} of its Sentinels, database {settings.get('db', 0)}"
    if "path" in settings:
        return f"unix://{settings['path']}"
    scheme = "rediss" if "ssl_cert_reqs" in settings else "redis"
    return f"{scheme}://{settings.get('host')}:{settings.get('port')}/{settings.get('db', 0)}"


def _greet(connection: Any) -> None:
    """Begin a connection as redis-py does. redis.ConnectionError for a server that says it is of _REFUSED_MODES."""
    connection.on_connect()
    try:
        connection.send_command("HELLO")
        said: Any = connection.read_response()
    except ResponseError:  # this user may not ask it, or a proxy does not know it
        return
    mode = dict(zip(said[::2], said[1::2], strict=False)).get(b"mode") if isinstance(said, list) else None
    if mode in _REFUSED_MODES:
        raise redis.ConnectionError(_REFUSED_MODES[mode])


def _malformed(url: str, error: ValueError) -> ConfigError:
    return ConfigError(
        f"PACELINE_REDIS_URL: got {masked(url)}, "
        f"expected redis://host:port/db, rediss://host:port/db, unix:///path?db=0 or "
        f"sentinel://host:port,host:port/service/db ({type(error).__name__}); "
        "write / ? # @ and : of a password as %2F %3F %23 %40 and %3A"
    )


def _refuse_options(url: str) -> None:
    parts = urlsplit(url)
    parts.port  # noqa: B018 - raises when it is not a number, as for a lone password
    if "@" in parts.query + parts.fragment:
        raise ValueError  # what looks like an option may be the rest of a password
    if parts.scheme == "unix" and not parts.path:
        raise ValueError
    if parts.scheme in {"redis", "rediss"} and not re.fullmatch(r"/?[0-9]*/?", parts.path):
        raise ValueError  # redis-py would take database 0 for anything else than a number
    names = set(parse_qs(parts.query, keep_blank_values=True))
    if any(name.startswith("ssl_") for name in names):
        raise ConfigError(
            "PACELINE_REDIS_URL: got an ssl_ option, expected none: certificates are always verified; "
            "remove it, and name your CA in PACELINE_REDIS_CA"
        )
    known = _OPTIONS.get(parts.scheme, frozenset())
    if names - known:
        raise ConfigError(
            f"PACELINE_REDIS_URL: got option {', '.join(map(repr, sorted(names - known)))} after the '?', "
            f"expected {', '.join(sorted(known)) or 'none'}; write redis://user:password@host:port/db and nothing more"
        )


def _hide_credentials(client: redis.Redis) -> None:
    """Move user and password where neither a repr of the client nor a look at its settings shows them."""
    settings = client.get_connection_kwargs()
    user = settings.pop("username", None)
    password = settings.pop("password", None)
    if user or password:
        settings["credential_provider"] = UsernamePasswordCredentialProvider(user, password)


def _with_certificates(ca_file: str) -> str:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"PACELINE_REDIS_CA: got {ca_file} ({error}), expected a file of PEM certificates") from None
    return ca_file


def _next_step(client: redis.Redis, error: RedisError) -> str:
    if isinstance(error, redis.TimeoutError) and "ssl_cert_reqs" in client.get_connection_kwargs():
        return f"start Redis, or {_TLS_PORT}"
    if isinstance(error, redis.ConnectionError):
        for mark, step in _NEXT_BY_TLS:
            if mark in str(error):
                return step
    for kinds, step in _NEXT:
        if isinstance(error, kinds):
            return step
    if isinstance(error, ResponseError):
        return next((step for mark, step in _NEXT_BY_TEXT if mark in str(error)), "see the Redis log")
    return "see the Redis log"
