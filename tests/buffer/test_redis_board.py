"""What only the Redis board can get wrong: its members' index, and writers that lose races."""

import pytest
from fleet import version
from paceline.buffer.board.event_codec import encode_event
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version import BoardEvent, VersionState
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BoardConflict, DecodeError
from paceline.buffer.keys import EVENTS, HEARTBEAT, LAST_STATUS, MEMBERS

CONFIG = BufferConfig()


@pytest.fixture
def board(redis_client) -> RedisVersionBoard:
    return RedisVersionBoard(redis_client, CONFIG)


def candidate(number: int) -> bytes:
    return encode_event(
        BoardEvent(
            number=number, state=VersionState.CANDIDATE, by="other", why="meanwhile", at=0.0, version=version(number)
        )
    )


def test_a_write_that_lost_a_race_is_decided_again(redis_client):
    written = []

    def clock() -> float:
        """Another writer comes between the first decision and its append."""
        if not written:
            written.append(redis_client.xadd(EVENTS.name("default"), {"event": candidate(9)}))
        return 5.0

    board = RedisVersionBoard(redis_client, CONFIG, clock)
    board.register(version(0), "test", "why")
    assert [event.number for event in board.events()] == [9, 0]


def test_a_writer_that_only_loses_races_gives_up_and_writes_nothing(redis_client):
    numbers = iter(range(100, 200))

    def clock() -> float:
        redis_client.xadd(EVENTS.name("default"), {"event": candidate(next(numbers))})
        return 5.0

    board = RedisVersionBoard(redis_client, CONFIG, clock)
    with pytest.raises(BoardConflict, match="got 16 writes by others in between"):
        board.register(version(0), "test", "why")
    assert 0 not in board.read().rows


def test_an_expired_member_leaves_the_index_with_the_next_beat_of_any_member(redis_client, board):
    board.beat("gone", MemberStatus(), 60.0)
    redis_client.delete(HEARTBEAT.name("default", "gone"))
    redis_client.zadd(MEMBERS.name("default"), {"gone": 1})
    board.beat("here", MemberStatus(), 60.0)
    assert redis_client.zrange(MEMBERS.name("default"), 0, -1) == [b"here"]
    seconds, _ = redis_client.time()
    assert 59_000 <= redis_client.zscore(MEMBERS.name("default"), "here") - seconds * 1000 <= 62_000
    assert 0 < redis_client.pttl(HEARTBEAT.name("default", "here")) <= 60_000


def test_an_event_of_a_later_schema_is_refused_with_its_bytes(redis_client, board):
    raw = candidate(0).replace(b'"schema":1', b'"schema":2')
    redis_client.xadd(EVENTS.name("default"), {"event": raw})
    with pytest.raises(DecodeError, match="schema: got 2, expected 1") as caught:
        board.read()
    assert caught.value.raw == raw


@pytest.mark.parametrize("fields", [{"other": "x"}, {"event": b"\xff"}, {"event": "[]"}])
def test_foreign_data_among_the_events_is_a_decode_error(redis_client, board, fields):
    redis_client.xadd(EVENTS.name("default"), fields)
    with pytest.raises(DecodeError, match="board event"):
        board.read()


FOREIGN = [b"", b"\xff", b"[1]", b'"text"', b'{"capture":"\xff"}', b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"]


@pytest.mark.parametrize("raw", FOREIGN, ids=range(len(FOREIGN)))
def test_a_heartbeat_that_cannot_be_read_is_handed_over_with_its_fault_and_hides_no_other(redis_client, board, raw):
    for name in ("learner:l", "replica:a", "replica:b"):
        board.beat(name, MemberStatus(draft_version=1), 60.0)
    redis_client.set(HEARTBEAT.name("default", "replica:a"), raw)
    found = board.heartbeats()
    assert [*found] == ["learner:l", "replica:a", "replica:b"]
    assert found["replica:b"] == found["learner:l"] == MemberStatus(draft_version=1)
    assert found["replica:a"].unreadable.startswith("status cannot be read: ")
    assert found["replica:a"] == MemberStatus(unreadable=found["replica:a"].unreadable)


@pytest.mark.parametrize("raw", FOREIGN, ids=range(len(FOREIGN)))
def test_foreign_data_in_a_last_status_is_said(redis_client, board, raw):
    redis_client.set(LAST_STATUS.name("default", "replica"), raw)
    assert board.last_status("replica").unreadable.startswith("status cannot be read: ")


def test_a_last_status_in_a_key_of_another_type_is_unknown_until_the_next_beat(redis_client, board):
    redis_client.lpush(LAST_STATUS.name("default", "replica"), b"{}")
    assert board.last_status("replica") == MemberStatus()
    board.beat("replica", MemberStatus(draft_version=1), 60.0)
    assert board.last_status("replica") == MemberStatus(draft_version=1)


def test_a_history_is_read_once_and_answers_as_if_all_of_it_were_read_again(redis_client, board):
    for number in range(3):
        board.register(version(number), "test", "why")
        board.move(number, VersionState.LIVE, "test", "better")
        assert board.read() == RedisVersionBoard(redis_client, CONFIG).read()
    before = board.read()
    # A board that reads the whole history misses version 0 from now on.
    redis_client.xdel(EVENTS.name("default"), board.events()[0].event_id)
    with pytest.raises(BoardConflict, match="version 0 is not on the board"):
        RedisVersionBoard(redis_client, CONFIG).read()
    assert board.read() == before
    board.roll_back("test", "worse")
    assert (before.live, board.read().live) == (2, 1)  # a state once read stays as it was


@pytest.mark.parametrize("others", [0, 1, 5])
def test_a_board_that_lost_its_data_is_read_from_the_beginning(redis_client, board, others):
    board.register(version(7), "test", "why")
    assert set(board.read().rows) == {7}
    redis_client.flushall()
    other = RedisVersionBoard(redis_client, CONFIG)
    for number in range(others):
        other.register(version(number), "test", "again")
    assert set(board.read().rows) == set(range(others))


def test_a_member_whose_name_is_not_utf_8_does_not_hide_the_others(redis_client, board):
    board.beat("replica", MemberStatus(draft_version=1), 60.0)
    redis_client.zadd(MEMBERS.name("default"), {b"\xff": 4e12})
    assert board.heartbeats() == {"replica": MemberStatus(draft_version=1)}


def test_no_spoilt_status_steers_the_terminal_through_its_fault(redis_client, board):
    board.beat("replica", MemberStatus(), 60.0)
    redis_client.set(HEARTBEAT.name("default", "replica"), b'{"dropped\x1b[2J')
    assert board.heartbeats()["replica"].unreadable.isprintable()


def test_a_foreign_event_fails_every_read_until_it_is_deleted(redis_client, board):
    board.register(version(0), "test", "why")
    stray = redis_client.xadd(EVENTS.name("default"), {"event": candidate(0)})
    for _ in range(2):
        with pytest.raises(BoardConflict, match=stray.decode()):
            board.read()
    redis_client.xdel(EVENTS.name("default"), stray)
    assert board.read().rows[0].state is VersionState.CANDIDATE
    board.move(0, VersionState.LIVE, "test", "better")
