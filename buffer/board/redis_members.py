"""RedisMembers: who beats on a speculator's board, who fell silent, and what each of them has counted."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import redis

from ..keys import BOOT, EVENTS, HEARTBEAT, HISTORY, LAST_STATUS, MEMBERS, SEEN
from ..redis_client import load_script, refuse_text_client, translate_redis_errors
from .farewell import member_seen
from .member_board import LAST_STATUS_S, MemberSeen
from .member_history import (
    HISTORY_EVERY_S,
    HISTORY_FINE_S,
    HISTORY_KEPT,
    HISTORY_S,
    History,
    decode_history,
    encode_entry,
)
from .member_status import MemberStatus, read_status

#: How much of a history is kept, as board.lua takes it.
_KEPT = (*(round(seconds * 1000) for seconds in (HISTORY_EVERY_S, HISTORY_FINE_S, HISTORY_S)), HISTORY_KEPT)


class RedisMembers:
    """The part of a VersionBoard on Redis that is about its members; the contract is VersionBoard."""

    def __init__(self, client: redis.Redis, speculator: str) -> None:
        refuse_text_client(client)
        self._client = client
        self._speculator = speculator
        self._script = load_script(client, Path(__file__).with_name("board.lua"))

    def claim(self, member: str, boot: str, ttl_s: float) -> float | None:
        keys = [BOOT.name(self._speculator, member), SEEN.name(self._speculator)]
        args = ["claim", member, boot, max(1, round(ttl_s * 1000))]
        with translate_redis_errors(self._client):
            held: Any = self._script(keys=keys, args=args)
        return None if held is None else float(held) / 1000

    def leave(self, member: str, boot: str) -> bool:
        with translate_redis_errors(self._client):
            keys = [*self._keys(member), BOOT.name(self._speculator, member)]
            return bool(self._script(keys=keys, args=["leave", member, boot]))

    def beat(self, member: str, status: MemberStatus, ttl_s: float) -> None:
        raw = msgspec.json.encode(status)
        boot, entry = encode_entry(status.counters)
        args = ["beat", member, max(1, round(ttl_s * 1000)), raw, round(LAST_STATUS_S * 1000), entry, boot, *_KEPT]
        with translate_redis_errors(self._client):
            self._script(keys=self._keys(member), args=args)

    def last_status(self, member: str) -> MemberStatus:
        # Not GET, which fails for a key of another type: the next beat replaces such a key.
        (raw,) = self._statuses([LAST_STATUS.name(self._speculator, member)])
        return _status(raw)

    def heartbeats(self) -> Mapping[str, MemberStatus]:
        with translate_redis_errors(self._client):
            names: Any = self._client.zrange(MEMBERS.name(self._speculator), 0, -1)
        members = sorted(_text(name) for name in names)
        values = self._statuses(HEARTBEAT.name(self._speculator, member) for member in members)
        return {member: read_status(raw) for member, raw in zip(members, values, strict=True) if raw is not None}

    def members(self) -> Mapping[str, MemberSeen]:
        seen_at = self._seen_at()
        members = sorted(seen_at)
        alive = self._statuses(HEARTBEAT.name(self._speculator, member) for member in members)
        silent = [member for member, raw in zip(members, alive, strict=True) if raw is None]
        last = self._statuses(LAST_STATUS.name(self._speculator, member) for member in silent)
        known = dict(zip(silent, last, strict=True))
        return {
            member: member_seen(
                _status(known[member] if raw is None else raw), seen_at[member], is_alive=raw is not None
            )
            for member, raw in zip(members, alive, strict=True)
        }

    def history(self, member: str, since_s: float = 0.0) -> History:
        with translate_redis_errors(self._client):
            key = HISTORY.name(self._speculator, member)
            rows: Any = self._client.xrange(key, min=max(0, round(since_s * 1000)))
        return decode_history((_entry_s(entry_id), fields.get(b"counters", b"")) for entry_id, fields in rows)

    def now(self) -> float:
        with translate_redis_errors(self._client):
            seconds, microseconds = self._client.time()
        return float(seconds) + float(microseconds) / 1e6

    def _keys(self, member: str) -> list[str]:
        """Those that board.lua takes for what a member writes."""
        keys = (HEARTBEAT, MEMBERS, LAST_STATUS, SEEN, HISTORY)
        return [key.name(self._speculator, member if key.suffix.endswith(":") else "") for key in keys]

    def _seen_at(self) -> dict[str, float]:
        """Unix seconds of the last beat of every member of the last LAST_STATUS_S, by Redis' clock."""
        now_s = self.now()
        with translate_redis_errors(self._client):
            rows: Any = self._client.zrange(SEEN.name(self._speculator), 0, -1, withscores=True)
        return {_text(name): ms / 1000 for name, ms in rows if ms / 1000 >= now_s - LAST_STATUS_S}

    def _statuses(self, keys: Iterable[str]) -> list[bytes | None]:
        """What is stored under each key; None where nothing is."""
        wanted = list(keys)
        with translate_redis_errors(self._client):
            values: Any = self._client.mget(wanted) if wanted else []
        return list(values)


def speculators(client: redis.Redis) -> list[str]:
    """Names of the speculators that have a board or members in this Redis. BufferUnavailable.

    Blocks while Redis walks over its keys, of which large payloads are the most.
    """
    ends = {key.suffix for key in (EVENTS, MEMBERS)}
    with translate_redis_errors(client):
        names = [_text(name) for name in client.scan_iter(match="paceline:{*}:[em]*s", count=10_000)]
    parts = (name.removeprefix("paceline:{").rpartition("}:") for name in names)
    return sorted({name for name, _, suffix in parts if suffix in ends})


def delete_speculator(client: redis.Redis, speculator: str) -> None:
    """Remove every key of a speculator: its traces, its board and its members. BufferUnavailable.

    Blocks as `speculators` does.
    """
    with translate_redis_errors(client):
        keys = list(client.scan_iter(match=f"paceline:{{{speculator}}}:*", count=10_000))
        if keys:
            client.unlink(*keys)


def _status(raw: bytes | None) -> MemberStatus:
    return MemberStatus() if raw is None else read_status(raw)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _entry_s(entry_id: bytes) -> float:
    """When Redis took an entry, unix seconds."""
    return int(entry_id.partition(b"-")[0]) / 1000
