"""MemoryVersionBoard: the version board inside one process, for tests and for programs without services."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Condition, RLock

import msgspec

from ..base import LAST_READING_S, MAX_WAIT_S
from ..board_rules import Decision, move_event, register_event, rollback_events
from ..codec import decode_event, encode_event
from ..lease import Lease, renewed
from ..version import BoardEvent, BoardState, DraftVersion, VersionState, fold


class MemoryVersionBoard:
    """A VersionBoard in memory; threads may share it. Events and readings pass through their JSON, as on Redis.

    `clock` (unix seconds) dates events and ends heartbeats and leases.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = RLock()
        self._written = Condition(self._lock)
        self._events: list[BoardEvent] = []
        self._reserved = 0
        self._beats: dict[str, tuple[float, bytes]] = {}  # member -> (lives until, reading)
        self._last_readings: dict[str, tuple[float, bytes]] = {}  # member -> (known until, reading)
        self._leases: dict[str, tuple[float, object]] = {}  # name -> (lives until, token of the holder)

    def next_number(self) -> int:
        """See VersionBoard."""
        with self._lock:
            self._reserved += 1
            return self._reserved - 1

    def register(self, version: DraftVersion, by: str, why: str) -> BoardEvent:
        """See VersionBoard."""
        return self._write(register_event(version, by, why))[0]

    def move(
        self, number: int, state: VersionState, by: str, why: str, replica: str = "", was: VersionState | None = None
    ) -> BoardEvent:
        """See VersionBoard."""
        return self._write(move_event(number, state, by, why, replica, was))[0]

    def roll_back(self, by: str, why: str, number: int | None = None, was: VersionState | None = None) -> BoardState:
        """See VersionBoard."""
        with self._lock:
            self._write(rollback_events(by, why, number, was))
            return self.read()

    def read(self) -> BoardState:
        """See VersionBoard."""
        return fold(self.events())

    def events(self, after_id: str = "", wait_s: float = 0.0) -> list[BoardEvent]:
        """See VersionBoard."""
        with self._lock:
            if wait_s > 0:
                self._written.wait_for(lambda: len(self._events) > _ordinal(after_id), min(wait_s, MAX_WAIT_S))
            return self._events[_ordinal(after_id) :]

    def _write(self, decide: Decision) -> list[BoardEvent]:
        with self._lock:
            now = self._clock()
            new = decide(fold(self._events), now)
            fold([*self._events, *new])  # raises when they do not follow
            stored = [self._stored(event, now, place) for place, event in enumerate(new, len(self._events) + 1)]
            self._events += stored
            self._written.notify_all()
            return stored

    def _stored(self, event: BoardEvent, now: float, ordinal: int) -> BoardEvent:
        return decode_event(encode_event(event), f"{int(now * 1000)}-{ordinal}")

    def beat(self, member: str, reading: Mapping[str, object], ttl_s: float) -> None:
        """See VersionBoard."""
        raw = msgspec.json.encode(dict(reading))
        with self._lock:
            self._beats[member] = (self._clock() + ttl_s, raw)
            self._last_readings[member] = (self._clock() + LAST_READING_S, raw)

    def last_reading(self, member: str) -> Mapping[str, object]:
        """See VersionBoard."""
        with self._lock:
            known_until, raw = self._last_readings.get(member, (0.0, b"{}"))
            return msgspec.json.decode(raw) if known_until > self._clock() else {}

    def heartbeats(self) -> Mapping[str, Mapping[str, object]]:
        """See VersionBoard."""
        with self._lock:
            now = self._clock()
            self._beats = {member: beat for member, beat in self._beats.items() if beat[0] > now}
            return {member: msgspec.json.decode(raw) for member, (_, raw) in sorted(self._beats.items())}

    @contextmanager
    def lease(self, name: str, ttl_s: float) -> Iterator[Lease]:
        """See VersionBoard. Renewed by time as it passes, ended by `clock`."""
        token = object()
        if not self._take(name, ttl_s, token):
            yield Lease(granted=False, ask=lambda: False)
            return
        try:
            with renewed(lambda: self._renew(name, ttl_s, token), ttl_s):
                yield Lease(granted=True, ask=lambda: self._holds(name, token))
        finally:
            with self._lock:
                if self._leases.get(name, (0.0, None))[1] is token:
                    del self._leases[name]

    def _take(self, name: str, ttl_s: float, token: object) -> bool:
        with self._lock:
            until, _ = self._leases.get(name, (0.0, None))
            if until > self._clock():
                return False
            self._leases[name] = (self._clock() + ttl_s, token)
            return True

    def _renew(self, name: str, ttl_s: float, token: object) -> None:
        with self._lock:
            if self._holds(name, token):
                self._leases[name] = (self._clock() + ttl_s, token)

    def _holds(self, name: str, token: object) -> bool:
        with self._lock:
            until, holder = self._leases.get(name, (0.0, None))
            return holder is token and until > self._clock()


def _ordinal(event_id: str) -> int:
    return int(event_id.partition("-")[2]) if event_id else 0
