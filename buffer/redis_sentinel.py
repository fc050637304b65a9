"""Redis behind Sentinels: the URL that names them, and what follows their primary through a fail-over.

    sentinel://user:password@host:26379,host:26379,host:26379/SERVICE/0

User, password and database are those of Redis; Sentinels are asked without any. sentinels:// has TLS to both.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote, unquote

import redis
from redis.backoff import NoBackoff
from redis.credentials import UsernamePasswordCredentialProvider
from redis.retry import Retry
from redis.sentinel import Sentinel

_PORT: Final = 26379
#: Hosts by comma, the name under which Sentinels know the primary, and a database.
_FORM: Final = re.compile(
    r"(?P<scheme>sentinels?)://((?P<user>[^:@/]*)(:(?P<password>[^:@/]*))?@)?"
    r"(?P<hosts>[^@/?#]+)/(?P<service>[^/@?#]+)(/(?P<db>[0-9]+))?/?"
)
_HOST: Final = re.compile(r"(?P<host>[^:\[\],]+|\[[0-9a-fA-F:.]+\])(:(?P<port>[0-9]{1,5}))?")


def is_sentinel(url: str) -> bool:
    """Whether `url` has one of the schemes of this module."""
    return url.startswith(("sentinel://", "sentinels://"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelUrl:
    """The parts of a URL."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    db: int
    user: str | None
    password: str | None
    has_tls: bool

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read a URL; ValueError, which does not hold it, when it is malformed."""
        found = _FORM.fullmatch(url)
        hosts = [_HOST.fullmatch(host) for host in found["hosts"].split(",")] if found else [None]
        if found is None or None in hosts:
            raise ValueError("malformed")
        return cls(
            sentinels=tuple((host["host"].strip("[]"), int(host["port"] or _PORT)) for host in hosts if host),
            service=unquote(found["service"]),
            db=int(found["db"] or 0),
            user=unquote(found["user"] or "") or None,
            password=unquote(found["password"] or "") or None,
            has_tls=found["scheme"] == "sentinels",
        )

    def client(self, tls: Mapping[str, Any], timeout_s: float) -> redis.Redis:
        """A client of the primary; nothing is connected yet.

        Every new connection asks the Sentinels, one after the other, where the primary is, each for `timeout_s` at
        most; a connection to a primary that has become a replica is given up. So the command that meets a fail-over
        fails, as it does when Redis restarts, and a later one reaches the new primary.
        """
        # As client_for has them.
        common = {
            "protocol": 2,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
            **self._encrypted(tls),
        }
        sentinels: Any = Sentinel(self.sentinels, sentinel_kwargs=common, **common)  # type: ignore[no-untyped-call]
        if self.user or self.password:
            who = {"credential_provider": UsernamePasswordCredentialProvider(self.user, self.password)}
        else:
            who = {}
        client: redis.Redis = sentinels.master_for(self.service, db=self.db, **who)
        return client

    @property
    def broker_url(self) -> str:
        """The same for Celery, which takes a URL for each Sentinel."""
        who = f"{quote(self.user or '', safe='')}:{quote(self.password or '', safe='')}@"
        asked = who if self.user or self.password else ""
        return ";".join(f"sentinel://{asked}{_in_url(host)}:{port}/{self.db}" for host, port in self.sentinels)

    def broker_options(self, tls: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """What Celery's `broker_transport_options` need beside the URL."""
        timeouts = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        return {"master_name": self.service, "sentinel_kwargs": {**timeouts, **self._encrypted(tls)}}

    def _encrypted(self, tls: Mapping[str, Any]) -> dict[str, Any]:
        return {"ssl": True, **tls} if self.has_tls else {}


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
