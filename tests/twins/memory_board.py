"""MemoryVersionBoard: the version board inside one process, for tests."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from threading import Condition, RLock

import msgspec
from paceline.buffer.board.board_rules import Decision, move_events, register_events, rollback_events
from paceline.buffer.board.event_codec import decode_event, encode_event
from paceline.buffer.board.farewell import member_seen
from paceline.buffer.board.lease import Lease, renewed
from paceline.buffer.board.member_board import LAST_STATUS_S, MemberSeen
from paceline.buffer.board.member_history import (
    HISTORY_EVERY_S,
    HISTORY_FINE_S,
    HISTORY_KEPT,
    HISTORY_S,
    History,
    decode_history,
    encode_entry,
)
from paceline.buffer.board.member_status import MemberStatus, read_status
from paceline.buffer.board.reason import Why
from paceline.buffer.board.version import BoardEvent, BoardState, DraftVersion, VersionState, fold
from paceline.buffer.errors import BoardConflict
from paceline.buffer.stream.trace_buffer import MAX_WAIT_S


class MemoryVersionBoard:
    """A VersionBoard in memory; threads may share it. Events and statuses pass through their JSON, as on Redis.

    `clock` (unix seconds) dates events and ends heartbeats and leases.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = RLock()
        self._written = Condition(self._lock)
        self._events: list[BoardEvent] = []
        self._reserved = 0
        self._beats: dict[str, tuple[float, bytes]] = {}  # member -> (expires at, status)
        self._boots: dict[str, tuple[float, str]] = {}  # member -> (expires at, boot that has the name)
        self._last_statuses: dict[str, tuple[float, bytes]] = {}  # member -> (beaten at, status)
        self._histories: dict[str, list[tuple[float, str, bytes]]] = {}  # member -> (at, boot, entry), oldest first
        self._leases: dict[str, tuple[float, object]] = {}  # name -> (expires at, token of the holder)

    def next_number(self) -> int:
        with self._lock:
            self._reserved += 1
            return self._reserved - 1

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
        with self._lock:
            self._write(lambda board, at: rollback_events(board, at, by=by, why=why, number=number, was=was, to=to))
            return self.read()

    def read(self) -> BoardState:
        return fold(self.events())

    def events(self, after_id: str = "", wait_s: float = 0.0) -> list[BoardEvent]:
        with self._lock:
            if wait_s > 0:
                self._written.wait_for(lambda: len(self._events) > _ordinal(after_id), min(wait_s, MAX_WAIT_S))
            if after_id and all(event.event_id != after_id for event in self._events):
                raise BoardConflict(f"board: got no event {after_id} any more, expected it")
            return self._events[_ordinal(after_id) :]

    def _write(self, decide: Decision) -> list[BoardEvent]:
        with self._lock:
            now = self._clock()
            new = decide(fold(self._events), now)
            fold([*self._events, *new])  # raises when they do not follow
            stored = [self._stored(event, now, ordinal) for ordinal, event in enumerate(new, len(self._events) + 1)]
            self._events += stored
            self._written.notify_all()
            return stored

    def _stored(self, event: BoardEvent, now: float, ordinal: int) -> BoardEvent:
        return decode_event(encode_event(event), f"{int(now * 1000)}-{ordinal}")

    def claim(self, member: str, boot: str, ttl_s: float) -> float | None:
        with self._lock:
            expires_at, holder = self._boots.get(member, (0.0, boot))
            if holder != boot and expires_at > self._clock():
                return self._last_statuses.get(member, (0.0, b""))[0]
            self._boots[member] = (self._clock() + ttl_s, boot)
            return None

    def leave(self, member: str, boot: str) -> bool:
        with self._lock:
            if (self.last_status(member).boot or boot) != boot:
                return False
            self._beats.pop(member, None)
            self._boots.pop(member, None)
            self._last_statuses.pop(member, None)
            self._histories.pop(member, None)
            return True

    def beat(self, member: str, status: MemberStatus, ttl_s: float) -> None:
        raw = msgspec.json.encode(status)
        with self._lock:
            self._beats[member] = (self._clock() + ttl_s, raw)
            self._last_statuses[member] = (self._clock(), raw)
            boot, entry = encode_entry(status.counters)
            if entry:
                self._remember(member, boot, entry)

    def _remember(self, member: str, boot: str, entry: bytes) -> None:
        rows = self._histories.get(member, [])
        now = self._clock()
        newest = rows[-1][0] if rows else None
        if newest is not None and newest // HISTORY_EVERY_S == now // HISTORY_EVERY_S:
            return
        rows = [*rows, (max(now, newest or now), boot, entry)][-HISTORY_KEPT:]
        self._histories[member] = _thinned([row for row in rows if row[0] >= now - HISTORY_S], now)

    def last_status(self, member: str) -> MemberStatus:
        seen = self.members().get(member)
        return seen.said if seen else MemberStatus()

    def members(self) -> Mapping[str, MemberSeen]:
        with self._lock:
            beating = self.heartbeats()
            now = self._clock()
            return {
                member: member_seen(read_status(raw), seen_at, is_alive=member in beating)
                for member, (seen_at, raw) in sorted(self._last_statuses.items())
                if seen_at > now - LAST_STATUS_S
            }

    def history(self, member: str, since_s: float = 0.0) -> History:
        with self._lock:
            rows = self._histories.get(member, [])
            is_kept = bool(rows) and rows[-1][0] > self._clock() - LAST_STATUS_S
            return decode_history((at, entry) for at, _, entry in rows if is_kept and at >= since_s)

    def now(self) -> float:
        return self._clock()

    def heartbeats(self) -> Mapping[str, MemberStatus]:
        with self._lock:
            now = self._clock()
            self._beats = {member: beat for member, beat in self._beats.items() if beat[0] > now}
            return {member: read_status(raw) for member, (_, raw) in sorted(self._beats.items())}

    @contextmanager
    def lease(self, name: str, ttl_s: float) -> Iterator[Lease]:
        """As the contract says; it is renewed in real time and ends by `clock`."""
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
            expires_at, _ = self._leases.get(name, (0.0, None))
            if expires_at > self._clock():
                return False
            self._leases[name] = (self._clock() + ttl_s, token)
            return True

    def _renew(self, name: str, ttl_s: float, token: object) -> None:
        with self._lock:
            if self._holds(name, token):
                self._leases[name] = (self._clock() + ttl_s, token)

    def _holds(self, name: str, token: object) -> bool:
        with self._lock:
            expires_at, holder = self._leases.get(name, (0.0, None))
            return holder is token and expires_at > self._clock()


def _ordinal(event_id: str) -> int:
    return int(event_id.partition("-")[2]) if event_id else 0


def _thinned(rows: list[tuple[float, str, bytes]], now: float) -> list[tuple[float, str, bytes]]:
    """`rows` without those of the two minutes before HISTORY_FINE_S ago that another one of its minute follows."""
    until = now - HISTORY_FINE_S
    old = [row for row in rows if until - 120.0 <= row[0] <= until]
    gone = [row for row, after in pairwise(old) if row[0] // 60.0 == after[0] // 60.0 and row[1] == after[1]]
    return [row for row in rows if row not in gone]
