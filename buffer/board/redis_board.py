"""RedisVersionBoard: version events, heartbeats and leases in Redis. Whatever must be atomic happens in board.lua."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import redis
from redis.exceptions import RedisError
from redis.lock import Lock

from ..config import BufferConfig
from ..errors import BoardConflict
from ..keys import EVENTS, LEASE, NEXT_NUMBER
from ..redis_client import translate_redis_errors
from ..stream.trace_buffer import MAX_WAIT_S
from .board_rules import Decision, move_events, register_events, rollback_events
from .event_codec import decode_event, encode_event
from .lease import Lease, renewed
from .reason import Why
from .redis_members import RedisMembers
from .version import BoardEvent, BoardFold, BoardState, DraftVersion, VersionState

#: How often a write is tried because another one came first. Writers are a learner and a few people: losing this many
#: races in a row means that a program writes in a loop.
_MAX_RACES = 16


class RedisVersionBoard(RedisMembers):
    """A VersionBoard on Redis; threads and processes may share it.

    Every write folds the events, decides, and appends only if nobody appended meanwhile; otherwise it decides again.
    So of two writers that move the same version one gets BoardConflict. Events are read once, unless the newest of
    them is gone: then the board lost its data and is read from the beginning. `clock` (unix seconds) dates the events.
    Every method may raise BufferUnavailable, and DecodeError for an event or a status that this build cannot read.
    """

    def __init__(self, client: redis.Redis, config: BufferConfig, clock: Callable[[], float] = time.time) -> None:
        super().__init__(client, config.speculator)
        self._clock = clock
        self._fold = BoardFold()
        self._fold_lock = threading.Lock()
        self._newest: Any = None  # row of the newest event in it

    def next_number(self) -> int:
        with translate_redis_errors(self._client):
            reserved: Any = self._client.incr(NEXT_NUMBER.name(self._speculator))
        return int(reserved) - 1

    def register(self, version: DraftVersion, by: str, why: Why) -> BoardEvent:
        return self._write(lambda _, at: register_events(at, version, by, why))[0]

    def move(
        self, number: int, state: VersionState, by: str, why: Why, *, replica: str = "", was: VersionState | None = None
    ) -> BoardEvent:
        return self._write(
            lambda board, at: move_events(
                board, at, number=number, state=state, by=by, why=why, replica=replica, was=was
            )
        )[0]

    def roll_back(
        self, by: str, why: Why, number: int | None = None, was: VersionState | None = None, *, to: int | None = None
    ) -> BoardState:
        self._write(lambda board, at: rollback_events(board, at, by=by, why=why, number=number, was=was, to=to))
        return self.read()

    def read(self) -> BoardState:
        return self._folded().state()

    def events(self, after_id: str = "", wait_s: float = 0.0) -> list[BoardEvent]:
        name = EVENTS.name(self._speculator)
        with translate_redis_errors(self._client):
            if wait_s > 0:  # Its reply has a different shape in every protocol, so it only says when to look.
                self._client.xread({name: after_id or "0-0"}, count=1, block=math.ceil(min(wait_s, MAX_WAIT_S) * 1000))
            rows: Any = self._client.xrange(name, min=after_id or "-")
        if after_id and (not rows or rows[0][0].decode() != after_id):
            raise BoardConflict(f"board: got no event {after_id} any more, expected it: Redis lost what it had taken")
        return [_event(*row) for row in rows[1 if after_id else 0 :]]

    def _folded(self) -> BoardFold:
        """A copy of the fold, brought up to date."""
        name = EVENTS.name(self._speculator)
        with self._fold_lock:
            with translate_redis_errors(self._client):
                rows: Any = self._client.xrange(name, min=self._newest[0] if self._newest else "-")
                if self._newest and rows[:1] != [self._newest]:
                    self._fold = BoardFold()
                    self._newest = None
                    rows = self._client.xrange(name)
            for row in rows[1:] if self._newest else rows:
                self._fold.extend([_event(*row)])
                self._newest = row
            return self._fold.copy()

    def _write(self, decide: Decision) -> list[BoardEvent]:
        for _ in range(_MAX_RACES):
            past = self._folded()
            last_id = past.last_event_id
            new = decide(past.state(), self._clock())
            past.extend(new)  # raises when they do not follow
            ids = self._append(last_id, new)
            if ids:
                return [replace(event, event_id=event_id) for event, event_id in zip(new, ids, strict=True)]
        raise BoardConflict(f"board: got {_MAX_RACES} writes by others in between, expected none; try again")

    def _append(self, last_id: str, events: list[BoardEvent]) -> list[str]:
        args = ["append", last_id, *map(encode_event, events)]
        with translate_redis_errors(self._client):
            return [event_id.decode() for event_id in self._script(keys=[EVENTS.name(self._speculator)], args=args)]

    @contextmanager
    def lease(self, name: str, ttl_s: float) -> Iterator[Lease]:
        ttl_s = max(ttl_s, 0.001)  # redis-py takes a timeout of 0 as none.
        key = LEASE.name(self._speculator, name)
        # Not thread-local: the token must be known to the thread that renews.
        lock = Lock(self._client, key, timeout=ttl_s, blocking=False, thread_local=False)
        with translate_redis_errors(self._client):
            held = bool(lock.acquire())
        if not held:
            yield Lease(granted=False, ask=lambda: False)
            return
        try:
            with renewed(lambda: _quietly(lock.reacquire), ttl_s):
                yield Lease(granted=True, ask=lambda: self._owns(lock))
        finally:
            # If it expired, or Redis is away, the key frees itself after its ttl; the body's outcome matters more.
            _quietly(lock.release)

    def _owns(self, lock: Lock) -> bool:
        with translate_redis_errors(self._client):
            return bool(lock.owned())


def _event(event_id: bytes, fields: Mapping[bytes, bytes]) -> BoardEvent:
    return decode_event(fields.get(b"event", b""), event_id.decode())


def _quietly(act: Callable[[], object]) -> None:
    # If Redis is away it may be back before the lease ends; if the lease is lost there is nothing to renew or free.
    with suppress(RedisError):
        act()
