"""Everything that can be told of a set-up without the flags of a server."""

from collections.abc import Callable, Iterator, Sequence

from ...buffer.board.board_access import open_board
from ...buffer.board.stored_weights import check_published, count
from ...buffer.board.version import BoardState
from ...buffer.board.version_store import VersionStore
from ...buffer.config import BufferConfig
from ...buffer.errors import BufferUnavailable, ConfigError, DecodeError, StoreUnavailable, WeightsRefused
from ...buffer.finding import Finding, Level
from ...buffer.redis_client import connect
from ...buffer.retention import redis_retention
from ...buffer.settings.fields import configured
from ...buffer.settings.sources import Settings
from ..mlflow_link import mlflow_waits
from ..served import HISTORY_S
from ..snapshot import Snapshot, take
from .members_side import beats, clocks, room_for_traffic, servers
from .redis_side import connection, encryption, memory_and_disk

#: Speculator and board in; out whether MLflow's aliases are the board's (None: that cannot be told), and a sentence.
AliasLook = Callable[[str, BoardState], tuple[bool | None, str]]


def examine_board(
    settings: Settings,
    redis_url: str | None,
    *,
    speculator: str | None,
    supported: Sequence[str],
    aliases: AliasLook | None,
) -> Iterator[Finding]:
    """Every finding in turn; `supported` names the releases of SGLang. Blocks on Redis and on where weights are."""
    url = redis_url or settings.value("REDIS_URL")
    if url is None:
        yield Finding("Redis", Level.WRONG, "PACELINE_REDIS_URL is not set: servers capture nothing")
        return
    config = configured(BufferConfig, settings)
    try:
        with connect(url, settings.value("REDIS_CA")) as client:
            if config.keeps_nothing:
                yield redis_retention(client)
            yield from memory_and_disk(client, config)
            yield from encryption(client, config)
        access = open_board(settings, url, speculator)
        seen = take(access.board, access.speculator, HISTORY_S)
        has_token = any(not entry.refused for entry in access.auth.history())
    except (BufferUnavailable, DecodeError, ConfigError) as fault:
        yield Finding("Redis", Level.WRONG, f"serving goes on without it, learning does not: {fault}")
        return
    if access.store.uri:
        yield store(access.store)
    yield weights(seen.state, access.store)
    yield connection(url)
    yield token(has_token=has_token)
    yield room_for_traffic(seen, config.max_bytes)
    yield servers(seen, supported)
    yield clocks(seen)
    yield beats(seen)
    yield mlflow(access.speculator, seen, aliases)


def store(place: VersionStore) -> Finding:
    """Whether this machine may look into the store that drafts travel by, with the credentials it has now."""
    try:
        versions = count(place.uri)
    except StoreUnavailable as fault:
        return Finding("store", Level.WRONG, f"no new draft reaches a server that finds it so: {fault}")
    if versions is None:
        text = f"{place.uri} has nothing: no version was published there yet, or there is no such place"
        return Finding("store", Level.NOTE, text)
    return Finding("store", Level.OK, f"{place.uri} can be listed; versions there: {versions}")


def weights(state: BoardState, place: VersionStore) -> Finding:
    """Whether this machine can read what servers are to swap in."""
    if state.live is None:
        return Finding("weights", Level.OK, "no version is live yet: the server drafts with what it is started with")
    try:
        found = check_published(state, state.live, place)
    except WeightsRefused as refusal:
        return Finding("weights", Level.WRONG, f"this machine cannot swap to the live version: {refusal}")
    return Finding("weights", Level.OK, f"those of live version {state.live} can be read at {found}")


def token(*, has_token: bool) -> Finding:
    """Whether operators must show one."""
    if has_token:
        return Finding("token", Level.OK, "operators must have it to promote or roll back")
    text = "none is set: whoever reaches Redis may promote and roll back by mistake; `paceline token set` sets one"
    return Finding("token", Level.NOTE, text)


def mlflow(speculator: str, seen: Snapshot, aliases: AliasLook | None) -> Finding:
    """What MLflow has not been told, and whether it names the drafts that the board names.

    `aliases` is None where MLflow is not here, or no URI is set.
    """
    waits = mlflow_waits(seen)
    if aliases is None:
        text = "not looked at: it is not installed here, or PACELINE_MLFLOW_URI is not set"
        return waits or Finding("MLflow", Level.NOTE, text)
    is_well, sentence = aliases(speculator, seen.state)
    level = {True: Level.OK, False: Level.WRONG, None: Level.NOTE}[is_well]
    if waits is None:
        return Finding("MLflow", level, sentence)
    return Finding("MLflow", Level.WRONG if is_well is False else waits.level, f"{waits.sentence}; {sentence}")
