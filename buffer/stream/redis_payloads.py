"""How payloads of traces get into Redis and out of it: small ones inside their entries, large ones apart.

A large one is a string of its own, which Redis keeps as it was received. Inside an entry it would be copied into Lua,
out of Lua and into the stream.
"""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError

#: From here on a payload is apart. A key of its own takes a command and some two hundred bytes, and whoever walks over
#: the keys of Redis meets it.
APART_BYTES = 64 << 10

#: How long a payload waits for its entry, which follows it in the same trip.
_ARRIVAL_MS = 60_000

#: The reason recorded with a dead letter that has no bytes.
NO_PAYLOAD = "got an entry without its payload, expected both: deleted by hand, expired, or evicted by Redis"

#: Entry id and payload; None where there is no payload any more.
Row = tuple[str, bytes | None]

#: What Redis gives of a stream; a pending id whose entry was deleted by hand comes without fields.
Page = Sequence[tuple[bytes | None, Mapping[bytes, bytes] | None]]

Word = str | float | bytes


class RedisPayloads:
    """Payloads of one speculator. `script` is stream.lua, with its keys; the last one begins the names of payloads.

    Methods raise what redis-py raises, and block for its time-out per round trip at most.
    """

    def __init__(self, client: redis.Redis, script: Any, keys: Sequence[str]) -> None:
        self._client = client
        self._script = script
        self._keys = list(keys)
        self._prefix = keys[-1]

    def append(self, head: Sequence[Word], payloads: Sequence[bytes], trace_ids: Sequence[str]) -> list[bytes]:
        """Store payloads with their entries; the ids of these. `head` is what comes before the arguments of the verb.

        One round trip, or a second one where the first found no memory and the script has made some.
        """
        name = f"{self._prefix}new-{uuid.uuid4().hex}-"
        apart = {f"{name}{n}": payload for n, payload in enumerate(payloads, 1) if len(payload) >= APART_BYTES}
        words: list[Word] = [*head, name.removeprefix(self._prefix)]
        for payload, trace_id in zip(payloads, trace_ids, strict=True):
            words += [f"{len(payload)} {trace_id}", b"" if len(payload) >= APART_BYTES else payload]
        replies = self._trip(apart, words)
        if any(isinstance(reply, OutOfMemoryError) for reply in replies) and "is not there" in str(replies[-1]):
            replies = self._trip(apart, words)
        for reply in replies:
            if isinstance(reply, Exception):
                self._discard(apart)
                raise reply
        return list(replies[-1])

    def rows(self, page: Page) -> list[Row]:
        """The rows of a page, in its order; pending ids whose entries were deleted by hand are left out."""
        found = [(entry_id.decode(), fields.get(b"trace")) for entry_id, fields in page if entry_id and fields]
        names = [self._prefix + entry_id for entry_id, inside in found if inside is None]
        apart: Any = iter(self._client.mget(names) if names else ())
        return [(entry_id, next(apart) if inside is None else inside) for entry_id, inside in found]

    def _trip(self, apart: Mapping[str, bytes], words: Sequence[Word]) -> list[Any]:
        """Set what is apart, then call the script; its reply comes last. What a command met stands for its reply."""
        with self._client.pipeline(transaction=False) as trip:
            command: Any = trip.execute_command  # costs half of what trip.set does, and has no types
            for name, payload in apart.items():
                command("SET", name, payload, "PX", _ARRIVAL_MS)
            trip.evalsha(self._script.sha, len(self._keys), *self._keys, *words)
            replies = trip.execute(raise_on_error=False)  # with it, redis-py would repeat a command in its message
        if isinstance(replies[-1], NoScriptError):  # a server that was started since, or never asked
            try:
                replies[-1] = self._script(keys=self._keys, args=words)
            except ResponseError as error:
                replies[-1] = error
        return replies

    def _discard(self, apart: Mapping[str, bytes]) -> None:
        """What has no entry would take memory for a minute, and memory may be what was missing."""
        with suppress(RedisError):
            if apart:
                self._client.unlink(*apart)
