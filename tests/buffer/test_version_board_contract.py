"""One contract, two boards: every test runs on memory and on Redis and must not see a difference."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import redis
from fleet import publish, version
from paceline.buffer.board import lease
from paceline.buffer.board.member_board import LAST_STATUS_S
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.version import BoardEvent, VersionState
from paceline.buffer.board.version_board import VersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BoardConflict
from paceline.buffer.keys import HEARTBEAT, LAST_STATUS, LEASE
from twins.memory_board import MemoryVersionBoard
from waiting import until

CANDIDATE, REFUSED, LIVE = VersionState.CANDIDATE, VersionState.REFUSED, VersionState.LIVE
RETIRED, ROLLED_BACK = VersionState.RETIRED, VersionState.ROLLED_BACK


@dataclass
class Clock:
    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class MemoryBackend:
    clock: Clock = field(default_factory=Clock)

    def open(self) -> VersionBoard:
        return MemoryVersionBoard(self.clock)

    def expire(self, *_: str, ttl_s: float = 60.0) -> None:
        self.clock.now += ttl_s

    def age(self, _: str, by_s: float) -> None:
        self.clock.now += by_s

    def left_s(self, board: MemoryVersionBoard, key: str) -> float:
        expires_at, _ = board._leases[key.rpartition(":")[2]]
        return expires_at - self.clock.now


@dataclass
class RedisBackend:
    client: redis.Redis
    clock: Clock = field(default_factory=Clock)

    def open(self) -> VersionBoard:
        from paceline.buffer.board.redis_board import RedisVersionBoard

        return RedisVersionBoard(self.client, BufferConfig(), self.clock)

    def expire(self, *keys: str, ttl_s: float = 60.0) -> None:
        """Redis expires keys by its own clock, so they are made to expire there, as if `ttl_s` had passed."""
        for key in keys:
            assert 0 < self.client.pttl(key) <= ttl_s * 1000
            self.client.pexpireat(key, 1)

    def age(self, key: str, by_s: float) -> None:
        """Let the key expire `by_s` earlier."""
        self.client.pexpire(key, self.client.pttl(key) - round(by_s * 1000))

    def left_s(self, _: VersionBoard, key: str) -> float:
        return self.client.pttl(key) / 1000


@pytest.fixture(params=["memory", "redis"])
def backend(request: pytest.FixtureRequest) -> MemoryBackend | RedisBackend:
    if request.param == "memory":
        return MemoryBackend()
    return RedisBackend(request.getfixturevalue("redis_client"))


@pytest.fixture
def board(backend) -> VersionBoard:
    return backend.open()


def states(board: VersionBoard) -> dict[int, str]:
    return {number: str(row.state) for number, row in board.read().rows.items()}


def test_a_new_board_is_empty(board):
    state = board.read()
    assert (dict(state.rows), state.live, state.previous, state.last_event_id) == ({}, None, None, "")
    assert board.events() == []
    assert board.heartbeats() == {}


def test_numbers_begin_at_zero_and_are_never_given_twice(board):
    assert board.next_number() == 0
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda _: board.next_number(), range(20))) == list(range(1, 21))


def test_register_appends_the_candidate_with_all_that_is_known_of_it(backend, board):
    event = board.register(version(3, scores={"accept_length": 2.5}), "learner", "trained")
    assert (event.number, event.state, event.by, event.why, event.at) == (
        3,
        CANDIDATE,
        "learner",
        "trained",
        backend.clock.now,
    )
    assert board.events() == [event]
    row = board.read().rows[3]
    assert (row.version, row.state, row.why, row.changed_at) == (
        version(3, scores={"accept_length": 2.5}),
        CANDIDATE,
        "trained",
        event.at,
    )
    assert board.read().last_event_id == event.event_id


def test_a_number_cannot_be_registered_twice(board):
    board.register(version(0), "learner", "trained")
    with pytest.raises(
        BoardConflict,
        match="0 is candidate already: got a move to candidate, expected one to canary or live or refused",
    ):
        board.register(version(0), "learner", "again")
    assert len(board.events()) == 1


@pytest.mark.guarantee("board-states")
def test_an_illegal_move_changes_nothing(board):
    board.register(version(0), "learner", "trained")
    with pytest.raises(BoardConflict, match="got a move to retired, expected one to"):
        board.move(0, RETIRED, "operator:me", "why")
    with pytest.raises(BoardConflict, match="version 7 is not on the board: got a move to live"):
        board.move(7, LIVE, "operator:me", "why")
    assert states(board) == {0: "candidate"}


def test_a_rollback_takes_the_canary_off_first_and_the_live_version_when_there_is_none(board):
    publish(board, 0, 1)
    board.register(version(2), "learner", "trained")
    event = board.move(2, VersionState.CANARY, "learner", "won the gate", replica="replica-a")
    assert (event.replica, board.read().drafts_on("replica-a"), board.read().drafts_on("replica-b")) == (
        "replica-a",
        2,
        1,
    )
    with pytest.raises(BoardConflict, match="rollback of version 0: got live 1 and canary 2, expected 0 to be one"):
        board.roll_back("replica:replica-a", "worse", 0)
    state = board.roll_back("operator:me", "worse")
    assert (state.live, state.canary, states(board)) == (1, None, {0: "retired", 1: "live", 2: "rolled_back"})
    assert board.roll_back("operator:me", "worse").live == 0


def test_a_replica_may_take_its_canary_or_the_live_version_down_by_number(board):
    publish(board, 0, 1)
    board.register(version(2), "learner", "trained")
    board.move(2, VersionState.CANARY, "learner", "won the gate", replica="a")
    assert board.roll_back("replica:b", "refused", 1).live == 0
    # Version 0 went live, and that ended the canary as well.
    assert states(board) == {0: "live", 1: "rolled_back", 2: "rolled_back"}


def test_a_write_that_expects_another_state_changes_nothing(board):
    publish(board, 0, 1)
    with pytest.raises(BoardConflict, match="version 1: got live, expected canary"):
        board.move(1, RETIRED, "replica:a", "why", was=VersionState.CANARY)
    with pytest.raises(BoardConflict, match="version 1: got live, expected canary"):
        board.roll_back("replica:a", "why", 1, VersionState.CANARY)
    with pytest.raises(BoardConflict, match="version 9: got unknown, expected live"):
        board.roll_back("replica:a", "why", 9, LIVE)
    assert states(board) == {0: "retired", 1: "live"}
    assert board.roll_back("replica:a", "why", 1, LIVE).live == 0


def test_a_rollback_returns_to_the_previous_version_in_one_step(board):
    publish(board, 0, 1, 2)
    state = board.roll_back("replica:a", "served worse")
    assert (state.live, state.previous) == (1, 0)
    assert states(board) == {0: "retired", 1: "live", 2: "rolled_back"}
    last_two = board.events()[-2:]
    assert [(event.number, event.state, event.by, event.why) for event in last_two] == [
        (2, ROLLED_BACK, "replica:a", "served worse"),
        (1, LIVE, "replica:a", "served worse"),
    ]
    assert board.roll_back("replica:a", "again").live == 0


def test_a_rollback_to_an_earlier_version_takes_all_since_out_of_service_for_good_in_one_step(board):
    publish(board, 0, 1, 2, 3)
    board.roll_back("operator:me", "3 was worse")
    publish(board, 4, 5)
    before = len(board.events())
    state = board.roll_back("learner", "harm", 5, LIVE, to=1)
    assert (state.live, state.previous, state.earlier, state.is_returned_to) == (1, 0, (0,), True)
    rolled_back = dict.fromkeys((2, 3, 4, 5), "rolled_back")
    assert states(board) == {0: "retired", 1: "live", **rolled_back}
    assert {(event.by, event.why, event.at) for event in board.events()[before:]} == {
        ("learner", "harm", board.events()[-1].at)
    }
    assert board.roll_back("operator:me", "worse").live == 0


def test_a_rollback_to_a_version_that_none_would_return_to_is_refused(board):
    publish(board, 0, 1, 2)
    board.roll_back("operator:me", "2 was worse")
    for to in (1, 2, 7):  # live, rolled back, unknown
        with pytest.raises(BoardConflict, match=rf"rollback to version {to}: got \[0\] to return to, expected {to}"):
            board.roll_back("learner", "harm", 1, LIVE, to=to)
    with pytest.raises(BoardConflict, match="version 0: got retired, expected live"):
        board.roll_back("learner", "harm", 0, LIVE, to=0)
    assert states(board) == {0: "retired", 1: "live", 2: "rolled_back"}


def test_a_rollback_without_a_previous_version_is_refused(board):
    with pytest.raises(BoardConflict, match="got no live version, expected one to roll back"):
        board.roll_back("operator:me", "why")
    publish(board, 0)
    with pytest.raises(BoardConflict, match="of live version 0: got none before it, expected one to go back to"):
        board.roll_back("operator:me", "why")
    assert states(board) == {0: "live"}


def test_events_can_be_followed_from_any_id(board):
    publish(board, 0, 1)
    events = board.events()
    assert [(event.number, event.state) for event in events] == [(0, CANDIDATE), (0, LIVE), (1, CANDIDATE), (1, LIVE)]
    assert board.events(events[1].event_id) == events[2:]
    assert board.events(events[3].event_id) == []
    assert len({event.event_id for event in events}) == 4


def test_a_follower_of_an_event_that_the_board_has_lost_is_told_so(board):
    publish(board, 0)
    with pytest.raises(BoardConflict, match=r"got no event 1-1 any more, expected it"):
        board.events("1-1")
    with pytest.raises(BoardConflict, match="got no event 99999999999999-0 any more"):
        board.events("99999999999999-0", wait_s=0.01)


def test_a_follower_is_woken_by_the_event_it_waits_for_and_returns_without_one(board):
    publish(board, 0)
    last_id = board.events()[-1].event_id
    assert board.events(last_id, wait_s=0.01) == []
    assert len(board.events("", wait_s=1.0)) == 2  # returns at once: there are events already
    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(board.events, last_id, 1.0)
        added = board.register(version(1), "learner", "trained")
        assert seen.result() == [added]


def test_of_many_writers_that_move_the_same_version_one_succeeds(backend):
    boards = [backend.open() for _ in range(6)]
    publish(boards[0], 0, 1)

    def roll_back(board: VersionBoard) -> int:
        try:
            board.roll_back("replica:x", "served worse")
        except BoardConflict:
            return 0
        return 1

    # In memory every board has its own events, so one object is shared.
    shared = boards if isinstance(backend, RedisBackend) else [boards[0]] * 6
    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(roll_back, shared)) == 1
    assert states(boards[0]) == {0: "live", 1: "rolled_back"}


def test_writers_that_do_not_contradict_each_other_all_succeed(backend):
    boards = [backend.open()] * 4

    def register(number: int) -> BoardEvent:
        return boards[number].register(version(number), "learner", "trained")

    with ThreadPoolExecutor(4) as pool:
        events = list(pool.map(register, range(4)))
    assert sorted(boards[0].events(), key=lambda event: event.number) == events


def test_a_score_that_is_not_finite_is_refused_and_the_board_stays_readable(board):
    with pytest.raises(BoardConflict, match="expected finite numbers"):
        board.register(version(0, scores={"accept_length": float("nan")}), "learner", "trained")
    assert board.events() == []


def test_heartbeats_hold_the_last_status_of_every_member_until_it_expires(backend, board):
    board.beat("replica-0", MemberStatus(draft_version=1), 60.0)
    board.beat("replica-0", MemberStatus(draft_version=2, capture_reason="é", skipped={"lora": 1}), 60.0)
    board.beat("learner{0} *", MemberStatus(), 3600.0)
    last = MemberStatus(draft_version=2, capture_reason="é", skipped={"lora": 1})
    beating = {"replica-0": last, "learner{0} *": MemberStatus()}
    assert board.heartbeats() == beating
    backend.expire(HEARTBEAT.name("default", "replica-0"))
    assert board.heartbeats() == {"learner{0} *": MemberStatus()}
    board.beat("replica-0", MemberStatus(draft_version=3), 60.0)
    assert board.heartbeats()["replica-0"] == MemberStatus(draft_version=3)


def test_the_last_status_of_a_member_outlives_its_heartbeat(backend, board):
    assert board.last_status("replica-0") == MemberStatus()
    for draft in (1, 2):
        board.beat("replica-0", MemberStatus(draft_version=draft), 60.0)
    board.beat("replica-1", MemberStatus(), 60.0)
    backend.expire(HEARTBEAT.name("default", "replica-0"))
    assert "replica-0" not in board.heartbeats()
    assert board.last_status("replica-0") == MemberStatus(draft_version=2)
    backend.expire(LAST_STATUS.name("default", "replica-0"), ttl_s=LAST_STATUS_S)
    assert board.last_status("replica-0") == MemberStatus()


def test_a_lease_is_held_by_one_and_free_again_after_its_body(board):
    with board.lease("round", 60.0) as first:
        with board.lease("round", 60.0) as second, board.lease("other", 60.0) as other:
            assert [*map(bool, (first, second, other))] == [True, False, True]
            assert [lease.is_held() for lease in (first, second, other)] == [True, False, True]
        assert not other.is_held()
        with board.lease("round", 60.0) as third:
            assert not third  # the second one, which did not get the lease, must not free it
    assert (bool(first), first.is_held()) == (True, False)
    with board.lease("round", 60.0) as fourth:
        assert fourth


def test_a_lease_is_free_again_when_its_body_raises(board):
    with pytest.raises(ZeroDivisionError), board.lease("round", 60.0):
        raise ZeroDivisionError
    with board.lease("round", 60.0) as held:
        assert held


def test_a_lease_that_expired_ends_quietly_and_does_not_free_the_next_holders(backend, board):
    slow = board.lease("round", 60.0)
    lost = slow.__enter__()
    assert lost.is_held()
    backend.expire(LEASE.name("default", "round"))
    assert (bool(lost), lost.is_held()) == (True, False)
    with board.lease("round", 60.0) as next_holder:
        assert (next_holder.is_held(), lost.is_held()) == (True, False)
        slow.__exit__(None, None, None)
        assert next_holder.is_held()
        with board.lease("round", 60.0) as third:
            assert not third


def test_a_lost_lease_does_not_come_back_when_the_next_holder_leaves(backend, board):
    with board.lease("round", 60.0) as lost:
        backend.expire(LEASE.name("default", "round"))
        with board.lease("round", 60.0) as next_holder:
            assert next_holder
        assert not lost.is_held()


def test_a_lease_is_renewed_while_its_body_runs(backend, monkeypatch):
    monkeypatch.setattr(lease, "_RENEWALS", 6000)  # one in 10 ms, so that no pause of this machine can lose it
    board, key = backend.open(), LEASE.name("default", "round")
    with board.lease("round", 60.0) as held:
        for _ in range(3):  # the body takes longer than the time to live
            backend.age(key, 40.0)
            until(lambda: backend.left_s(board, key) > 40.0, "the next renewal")
        assert held.is_held()
        with board.lease("round", 60.0) as other:
            assert not other
    with board.lease("round", 60.0) as free:
        assert free


def test_a_lease_that_nobody_renews_ends(backend):
    board, key = backend.open(), LEASE.name("default", "round")
    with board.lease("round", 60.0) as held:
        backend.age(key, 40.0)
        assert held.is_held()
        backend.expire(key, ttl_s=20.0)
        assert not held.is_held()
