"""Where a version drafts first, and how long its canary may last."""

import pytest
from paceline.buffer.memory_board import MemoryVersionBoard
from paceline.buffer.version import DraftVersion, VersionState
from paceline.learner.canary import end_overdue, let_on

SERVED = {"version": 0, "ended": [["ab", [], 3, 3]]}
ABLE = {"capture": "on", "swap": "on", "stretches": SERVED}


@pytest.fixture
def board():
    made = MemoryVersionBoard(lambda: 100.0)
    for number in range(3):
        version = DraftVersion(number, None, "t", "0", "eagle3", f"file:///{number}", "ab", "o", ("", ""))
        made.register(version, "learner", "new")
    made.move(0, VersionState.LIVE, "learner", "start")
    return made


def beat(board, **readings):
    for replica, reading in readings.items():
        board.beat(f"replica:{replica}", reading, 60.0)
    board.beat("learner:x", ABLE, 60.0)


@pytest.mark.parametrize(
    ("replicas", "with_canary"),
    [
        ({}, True),
        ({"a": ABLE}, True),
        ({"a": ABLE, "b": {**ABLE, "capture": "off"}}, True),
        ({"a": ABLE, "b": {**ABLE, "swap": "off"}}, True),
        ({"a": ABLE, "b": {**ABLE, "stretches": {"version": 0, "ended": []}}}, True),  # a standby
        ({"a": ABLE, "b": {**ABLE, "stretches": {**SERVED, "version": 7}}}, True),
        ({"a": ABLE, "b": ABLE}, False),
    ],
)
def test_a_version_goes_live_at_once_where_there_is_nothing_to_hold_it_against(board, replicas, with_canary):
    beat(board, **replicas)
    let_on(board, 1, "won", with_canary=with_canary)
    assert (board.read().live, board.read().canary) == (1, None)


def test_replicas_are_canaries_by_turns(board):
    beat(board, a=ABLE, b=ABLE)
    let_on(board, 1, "won the gate", with_canary=True)
    row = board.read().rows[1]
    assert (row.state, row.replica, row.why, board.read().live) == (VersionState.CANARY, "b", "won the gate", 0)
    board.roll_back("replica:b", "worse", 1)
    let_on(board, 2, "won the gate", with_canary=True)
    assert board.read().rows[2].replica == "a"


def test_a_second_canary_waits_as_a_candidate(board):
    beat(board, a=ABLE, b=ABLE)
    let_on(board, 1, "won", with_canary=True)
    let_on(board, 2, "won", with_canary=True)
    assert board.read().rows[2].state is VersionState.CANDIDATE


def test_an_undecided_canary_ends_at_its_limit(board):
    beat(board, a=ABLE, b=ABLE)
    end_overdue(board, board.read(), 50.0, 1e9)
    assert board.read().live == 0
    let_on(board, 1, "won", with_canary=True)
    end_overdue(board, board.read(), 50.0, 149.9)
    assert board.read().canary == 1
    state = board.read()
    end_overdue(board, state, 50.0, 150.0)
    row = board.read().rows[1]
    assert (board.read().live, row.state, row.why) == (0, VersionState.ROLLED_BACK, "canary on b undecided after 50 s")
    end_overdue(board, state, 50.0, 150.0)  # somebody else was quicker
    assert len(board.events()) == 6
