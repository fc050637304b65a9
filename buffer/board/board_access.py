"""What a command needs of a board: the board, the operator token, and one connection to Redis for both."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from ..config import BufferConfig
from ..errors import ConfigError
from ..plain_text import printable
from ..redis_client import client_for, connect
from ..settings.fields import configured
from ..settings.sources import Settings
from ..settings.table import LOCAL_REDIS
from .redis_board import RedisVersionBoard
from .redis_members import delete_speculator, speculators
from .redis_operator import OperatorAuth
from .version_board import VersionBoard
from .version_store import NO_STORE, VersionStore, store_of


@dataclass(frozen=True, slots=True)
class BoardAccess:
    """The board of one speculator, and who may change it."""

    speculator: str
    board: VersionBoard
    auth: OperatorAuth
    token: str | None  # the operator's; a secret
    _: KW_ONLY
    store: VersionStore = NO_STORE  # where servers find weights

    def board_for(self, operator: str, act: str) -> VersionBoard:
        """Return the board if `operator` has the token, or if none is set; OperatorAuth.require says what is raised."""
        self.auth.require(self.token, operator, act)
        return self.board


def open_board(settings: Settings, redis_url: str | None = None, speculator: str | None = None) -> BoardAccess:
    """Connect to the Redis of `settings`, in which `redis_url` and `speculator` replace the values if they are given.

    Without a speculator from either, the only one of that Redis is taken. Blocks as `connect` does. Raises ConfigError
    for a bad setting and where there are several speculators, and BufferUnavailable when Redis does not answer.
    """
    config = configured(BufferConfig, settings)
    with ExitStack() as unless_opened:
        client = _connected(settings, redis_url)
        unless_opened.callback(client.close)
        if speculator is None and not settings.is_given("SPECULATOR"):
            speculator = _only(speculators(client))
        config = replace(config, speculator=speculator or config.speculator)
        unless_opened.pop_all()
    board = RedisVersionBoard(client, config)
    auth = OperatorAuth(client, config)
    return BoardAccess(config.speculator, board, auth, settings.value("OPERATOR_TOKEN"), store=store_of(config))


@contextmanager
def passing_board(settings: Settings, speculator: str) -> Iterator[VersionBoard]:
    """The board of a new `speculator` in the Redis of `settings`, of which no key is left at the end of the body.

    End whoever writes to it before. Blocks and raises as open_board does.
    """
    with _connected(settings, None) as client:
        try:
            yield RedisVersionBoard(client, replace(configured(BufferConfig, settings), speculator=speculator))
        finally:
            delete_speculator(client, speculator)


def list_speculators(settings: Settings, redis_url: str | None = None) -> list[str]:
    """Names of all speculators in the Redis of `settings`. Blocks and raises as open_board does."""
    with _connected(settings, redis_url) as client:
        return speculators(client)


def check_redis_url(settings: Settings, redis_url: str | None = None) -> None:
    """ConfigError where no client can be made of the Redis URL that open_board would take. Connects to nothing."""
    client_for(_url(settings, redis_url), settings.value("REDIS_CA")).close()


def _url(settings: Settings, redis_url: str | None) -> str:
    return redis_url or settings.value("REDIS_URL") or LOCAL_REDIS


def _connected(settings: Settings, redis_url: str | None) -> Any:
    return connect(_url(settings, redis_url), settings.value("REDIS_CA"))


def _only(names: Sequence[str]) -> str | None:
    """The one name; None in a Redis that has none yet. ConfigError lists several."""
    if len(names) > 1:
        raise ConfigError(
            f"PACELINE_SPECULATOR: got nothing, and Redis has {', '.join(map(printable, names))}, expected one of them "
            "there or in --speculator"
        )
    return names[0] if names else None
