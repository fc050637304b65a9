"""Members and their histories: what is true of the board in memory and of that in Redis alike."""

import time
from dataclasses import dataclass

import msgspec
import pytest
import redis
import zstandard
from paceline.buffer.board.counters import Counters, TraceCounters
from paceline.buffer.board.member_history import HISTORY_EVERY_S, HISTORY_FINE_S, HISTORY_KEPT, HISTORY_S, encode_entry
from paceline.buffer.board.member_status import MemberStatus, TracesSaid
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.redis_members import speculators
from paceline.buffer.board.version_board import VersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.keys import HEARTBEAT, HISTORY, LAST_STATUS, SEEN
from twins.memory_board import MemoryVersionBoard

HOUR_S, DAY_S = 3600.0, 24 * 3600.0


@dataclass
class Memory:
    """A board in memory, and its past made by hand."""

    board: MemoryVersionBoard

    def forget(self, member: str, ago_s: float) -> None:
        """Let `member` have beaten last `ago_s` ago, and its heartbeat end."""
        _, raw = self.board._last_statuses[member]
        self.board._last_statuses[member] = (time.time() - ago_s, raw)
        self.board._beats.pop(member)

    def plant(self, member: str, rows: list[tuple[float, str, bytes]]) -> None:
        self.board._histories[member] = rows


@dataclass
class Redis:
    """A board in Redis, and its past made by hand."""

    board: RedisVersionBoard
    client: redis.Redis

    def forget(self, member: str, ago_s: float) -> None:
        self.client.zadd(SEEN.name("default"), {member: (time.time() - ago_s) * 1000})
        self.client.delete(HEARTBEAT.name("default", member))
        self.client.pexpire(LAST_STATUS.name("default", member), round((7 * DAY_S - ago_s) * 1000))

    def plant(self, member: str, rows: list[tuple[float, str, bytes]]) -> None:
        for at, boot, raw in rows:
            fields = {"boot": boot, "counters": raw}
            self.client.xadd(HISTORY.name("default", member), fields, id=f"{round(at * 1000)}-0")


@pytest.fixture(params=["memory", "redis"])
def house(request: pytest.FixtureRequest) -> Memory | Redis:
    if request.param == "memory":
        return Memory(MemoryVersionBoard())
    client = request.getfixturevalue("redis_client")
    return Redis(RedisVersionBoard(client, BufferConfig()), client)


@pytest.fixture
def board(house) -> VersionBoard:
    return house.board


def status(captured: int, boot: str = "a") -> MemberStatus:
    return MemberStatus(draft_version=3, counters=counters(captured, boot))


def counters(captured: int, boot: str = "a") -> Counters:
    return Counters(at=1.0, boot=boot, traces=TraceCounters(captured=captured))


def entry(captured: int, boot: str = "a") -> bytes:
    return encode_entry(counters(captured, boot))[1]


def captured(history) -> list[int]:
    return [one.traces.captured for one in history]


def test_a_new_board_has_no_members_and_no_history(board):
    assert board.members() == {}
    assert board.history("replica:a") == []
    assert abs(board.now() - time.time()) < 60.0


def test_members_are_those_that_beat_and_those_that_fell_silent_in_the_last_seven_days(house, board):
    for name in ("replica:a", "replica:b", "replica:c"):
        board.beat(name, MemberStatus(draft_version=1), 60.0)
    house.forget("replica:b", 3 * DAY_S)
    house.forget("replica:c", 8 * DAY_S)
    members = board.members()
    assert {name: seen.is_alive for name, seen in members.items()} == {"replica:a": True, "replica:b": False}
    assert [seen.said for seen in members.values()] == [MemberStatus(draft_version=1)] * 2
    assert [round((board.now() - seen.last_seen_at) / DAY_S) for seen in members.values()] == [0, 3]
    board.beat("replica:b", MemberStatus(draft_version=2), 60.0)
    assert board.members()["replica:b"].is_alive
    assert board.members()["replica:b"].said == MemberStatus(draft_version=2)


def test_only_beats_with_counters_make_a_history_one_entry_per_span(board):
    board.beat("replica:old", MemberStatus(traces=TracesSaid(captured=7)), 60.0)
    assert board.history("replica:old") == []
    before = board.now()
    for number in range(1, 4):
        board.beat("replica:a", status(number), 60.0)
    found = captured(board.history("replica:a"))
    # Three beats in a row lie in one span, or in two where one begins in between.
    assert found[0] == 1
    assert len(found) <= 1 + int(board.now() // HISTORY_EVERY_S - before // HISTORY_EVERY_S)


def test_a_history_is_dated_by_the_boards_clock_and_read_from_a_time_on(house, board):
    now = board.now()
    house.plant("replica:a", [(now - ago, "a", entry(round(ago))) for ago in (300.0, 200.0, 100.0)])
    found = board.history("replica:a")
    assert captured(found) == [300, 200, 100]
    assert [round(now - one.at) for one in found] == [300, 200, 100]
    assert captured(board.history("replica:a", now - 250.0)) == [200, 100]
    board.beat("replica:a", status(7), 60.0)
    assert captured(board.history("replica:a", now - 150.0)) == [100, 7]


def test_an_hour_is_kept_the_older_part_of_it_by_the_minute(house, board):
    now = board.now()
    ages = [HISTORY_S + 90.0, HISTORY_S + 5.0, *range(840, 500, -5)]
    house.plant("replica:a", [(now - age, "a", entry(round(age))) for age in ages])
    board.beat("replica:a", status(0), 60.0)
    left = captured(board.history("replica:a"))

    # Every age in its minute of the clock; of what has just turned old, the youngest of each minute stays.
    old = [age for age in ages if HISTORY_FINE_S + 2 <= age <= HISTORY_FINE_S + 118]
    last_of_minute = {(now - age) // 60: age for age in old}
    kept = {age for age in left if age in old}
    assert set(last_of_minute.values()) <= kept | {min(old)}
    assert len(kept) <= len(last_of_minute) + 1
    assert [age for age in left if age < HISTORY_FINE_S - 2] == [age for age in ages if age < HISTORY_FINE_S - 2] + [0]
    assert max(left) < HISTORY_S


def test_the_last_entry_of_a_boot_is_kept(house, board):
    now = board.now()
    start = (now - HISTORY_FINE_S - 56.0) // 60.0 * 60.0  # a whole minute that has just turned old, or is about to
    rows = [(start + 5.0 * place, "first" if place < 6 else "second", entry(place)) for place in range(12)]
    house.plant("replica:a", rows)
    board.beat("replica:a", status(99), 60.0)
    assert captured(board.history("replica:a")) == [5, 11, 99]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff",
        msgspec.json.encode({"at": 1.0, "boot": "a"}),  # no frame
        zstandard.compress(b"[1]"),
        zstandard.compress(b'{"at": "x", "boot": "a"}'),
        zstandard.compress(b"[" * 100_000),
        zstandard.compress(bytes(10**6)),  # more than an entry may unpack to
        zstandard.compress(b"{}")[:-1],
    ],
    ids=["empty", "byte", "bare", "list", "text", "deep", "bomb", "cut"],
)
def test_what_is_no_counters_is_skipped_and_counted(house, board, raw):
    now = board.now()
    house.plant("replica:a", [(now - 3.0, "a", entry(1)), (now - 2.0, "a", raw), (now - 1.0, "a", entry(2))])
    found = board.history("replica:a")
    assert (captured(found), found.skipped) == ([1, 2], 1)


def test_counters_of_a_later_release_are_read_as_far_as_this_one_knows_them(house, board):
    later = msgspec.to_builtins(counters(5)) | {"invented": {"later": 1}}
    house.plant("replica:a", [(board.now(), "a", zstandard.compress(msgspec.json.encode(later)))])
    assert captured(board.history("replica:a")) == [5]


def test_no_more_entries_are_kept_than_promised(house, board):
    now = board.now()
    house.plant("replica:a", [(now - 500.0 + place / 10.0, "a", entry(place)) for place in range(HISTORY_KEPT + 5)])
    board.beat("replica:a", status(0), 60.0)
    assert len(board.history("replica:a")) == HISTORY_KEPT


def test_a_status_that_cannot_be_read_hides_no_member(redis_client):
    board = RedisVersionBoard(redis_client, BufferConfig())
    for name in ("replica:a", "replica:b"):
        board.beat(name, MemberStatus(draft_version=1), 60.0)
    redis_client.set(HEARTBEAT.name("default", "replica:a"), b"[1]\x1b")
    members = board.members()
    assert members["replica:b"].said == MemberStatus(draft_version=1)
    assert (members["replica:a"].said.draft_version, members["replica:a"].is_alive) == (None, True)
    assert members["replica:a"].said.unreadable.startswith("status cannot be read: ")


def test_a_history_in_a_key_of_another_type_is_replaced(redis_client):
    board = RedisVersionBoard(redis_client, BufferConfig())
    redis_client.set(HISTORY.name("default", "replica:a"), "x")
    board.beat("replica:a", status(5), 60.0)
    assert captured(board.history("replica:a")) == [5]
    assert 0 < redis_client.pttl(HISTORY.name("default", "replica:a")) <= 7 * DAY_S * 1000


def test_speculators_are_those_with_a_board_or_members(redis_client):
    assert speculators(redis_client) == []
    RedisVersionBoard(redis_client, BufferConfig(speculator="b")).beat("replica:a", MemberStatus(), 60.0)
    redis_client.xadd("paceline:{a}:events", {"event": "x"})
    redis_client.set("paceline:{c}:next_number", 1)
    redis_client.set("other:members", 1)
    assert speculators(redis_client) == ["a", "b"]
