"""Payloads of traces in Redis: strings of their own, so that they are copied neither into a stream nor into Lua."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis.client import Pipeline

#: How long a payload waits for its entry, which follows it in the same trip.
_ARRIVAL_MS = 60_000

#: The reason recorded with a dead letter that has no bytes.
NO_PAYLOAD = "got an entry without its payload, expected both: deleted by hand, or evicted for want of noeviction"

#: Entry id and payload; None where there is no payload any more.
Row = tuple[str, bytes | None]

#: What Redis gives of a stream; a pending id whose entry was deleted by hand comes without fields.
Page = Sequence[tuple[bytes | None, Mapping[bytes, bytes] | None]]


def new_name() -> str:
    """What begins the names of a batch of payloads that have no entries yet; nobody else's do."""
    return f"new-{uuid.uuid4().hex}-"


def send(trip: Pipeline, prefix: str, name: str, payloads: Sequence[bytes]) -> None:
    """Add to `trip` what sets the payloads, numbered from 1; stream.lua gives each the name of its entry."""
    command: Any = trip.execute_command  # costs half of what trip.set does, and has no types
    for number, payload in enumerate(payloads, 1):
        command("SET", f"{prefix}{name}{number}", payload, "PX", _ARRIVAL_MS)


def read_rows(client: redis.Redis, prefix: str, page: Page) -> list[Row]:
    """The rows of a page, in its order; pending ids whose entries were deleted by hand are left out. One round trip.

    A release that knew no payloads put them into the field trace of the entry; these are read too.
    """
    found = [(entry_id.decode(), fields.get(b"trace")) for entry_id, fields in page if entry_id and fields]
    names = [prefix + entry_id for entry_id, inside in found if inside is None]
    apart: Any = iter(client.mget(names) if names else ())
    return [(entry_id, next(apart) if inside is None else inside) for entry_id, inside in found]
