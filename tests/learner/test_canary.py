"""Where a version drafts first, and how long its canary may last."""

import pytest
from fleet import version
from paceline.buffer.board.reason import ReasonCode, because
from paceline.buffer.board.version import VersionState
from paceline.learner.delivery.rollout import CanaryLimit, start_canary_or_go_live
from said import said
from twins.memory_board import MemoryVersionBoard

SERVED = {"version": 0, "ended": [["ab", [], 3, 3]]}
ABLE = {"capture": "on", "swap": "on", "stretches": SERVED}


@pytest.fixture
def board():
    made = MemoryVersionBoard(lambda: 100.0)
    for number in range(3):
        made.register(version(number), "learner", "new")
    made.move(0, VersionState.LIVE, "learner", "start")
    return made


def beat(board, **statuses):
    for replica, status in statuses.items():
        board.beat(f"replica:{replica}", said(status), 60.0)
    board.beat("learner:x", said(ABLE), 60.0)


@pytest.mark.parametrize(
    ("replicas", "with_canary"),
    [
        ({}, True),
        ({"a": ABLE}, True),
        ({"a": ABLE, "b": {**ABLE, "capture": "off"}}, True),
        ({"a": ABLE, "b": {**ABLE, "swap": "off"}}, True),
        ({"a": ABLE, "b": {**ABLE, "swap": "follows"}}, True),  # another rank of the same server
        ({"a": ABLE, "b": {**ABLE, "stretches": {"version": 0, "ended": []}}}, True),  # a standby
        ({"a": ABLE, "b": {**ABLE, "stretches": {**SERVED, "version": 7}}}, True),
        ({"a": ABLE, "b": ABLE}, False),
    ],
)
def test_a_version_goes_live_at_once_where_there_is_nothing_to_compare_it_with(board, replicas, with_canary):
    beat(board, **replicas)
    start_canary_or_go_live(board, 1, "won", with_canary=with_canary)
    assert (board.read().live, board.read().canary) == (1, None)


def test_a_replica_that_will_soon_serve_the_live_version_can_be_compared_with_a_canary(board):
    beat(board, a=ABLE, b={**ABLE, "draft_version": 7, "stretches": {**SERVED, "version": 7}})
    start_canary_or_go_live(board, 1, "won", with_canary=True)
    assert (board.read().canary, board.read().rows[1].replica) == (1, "a")


@pytest.mark.parametrize("served", [SERVED, {"version": 0, "ended": []}])
@pytest.mark.parametrize("others", [{}, {"b": {**ABLE, "capture": "off"}}])
def test_a_replica_that_alternates_needs_no_other_one(board, others, served):
    beat(board, a={**ABLE, "stretches": served, "canary_window_s": 20.0}, **others)
    start_canary_or_go_live(board, 1, "won", with_canary=True)
    assert (board.read().canary, board.read().rows[1].replica) == (1, "a")


def test_replicas_take_turns_as_canary(board):
    beat(board, a=ABLE, b=ABLE)
    start_canary_or_go_live(board, 1, "won the gate", with_canary=True)
    row = board.read().rows[1]
    assert (row.state, row.replica, row.why, board.read().live) == (VersionState.CANARY, "b", "won the gate", 0)
    board.roll_back("replica:b", "worse", 1)
    start_canary_or_go_live(board, 2, "won the gate", with_canary=True)
    assert board.read().rows[2].replica == "a"


def test_a_second_canary_waits_as_a_candidate(board):
    beat(board, a=ABLE, b=ABLE)
    start_canary_or_go_live(board, 1, "won", with_canary=True)
    start_canary_or_go_live(board, 2, "won", with_canary=True)
    assert board.read().rows[2].state is VersionState.CANDIDATE


class Clock:
    """Seconds of a monotonic clock."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_an_undecided_canary_ends_at_its_limit_counted_from_when_it_was_first_seen(board):
    clock = Clock()
    limit = CanaryLimit(50.0, clock)
    beat(board, a=ABLE, b=ABLE)
    limit.end_overdue(board, board.read())
    assert board.read().live == 0
    clock.now_s = 1000.0
    start_canary_or_go_live(board, 1, "won", with_canary=True)
    limit.end_overdue(board, board.read())
    clock.now_s = 1049.9
    limit.end_overdue(board, board.read())
    assert board.read().canary == 1
    state = board.read()
    clock.now_s = 1050.0
    limit.end_overdue(board, state)
    row = board.read().rows[1]
    overdue = because(ReasonCode.CANARY_OVERDUE, replica="b", limit_s=50)
    assert (board.read().live, row.state, row.why) == (0, VersionState.ROLLED_BACK, overdue)
    limit.end_overdue(board, state)  # somebody else was faster
    assert len(board.events()) == 6


def test_the_next_canary_has_its_own_time(board):
    clock = Clock()
    limit = CanaryLimit(50.0, clock)
    beat(board, a=ABLE, b=ABLE)
    start_canary_or_go_live(board, 1, "won", with_canary=True)
    limit.end_overdue(board, board.read())
    board.roll_back("replica:b", "worse", 1)
    start_canary_or_go_live(board, 2, "won", with_canary=True)
    clock.now_s = 60.0
    limit.end_overdue(board, board.read())
    assert board.read().canary == 2


def test_a_limit_of_zero_ends_a_canary_at_once(board):
    beat(board, a=ABLE, b=ABLE)
    start_canary_or_go_live(board, 1, "won", with_canary=True)
    CanaryLimit(0.0).end_overdue(board, board.read())
    assert board.read().canary is None
