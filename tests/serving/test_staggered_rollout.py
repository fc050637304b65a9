"""Replicas take a new live version over one after another, by name; a roll back waits for nobody."""

import pytest
from paceline.buffer.testing.memory_board import MemoryVersionBoard
from paceline.buffer.version import DraftVersion, VersionState
from paceline.serving.swap.staggered_rollout import STALLED_S, StaggeredRollout

HOLD_S = 5.0


class House:
    """A board on which version 1 has just gone live behind 0, and a clock."""

    def __init__(self):
        self.now = 100.0
        self.board = MemoryVersionBoard(lambda: self.now)
        for number in range(3):
            version = DraftVersion(number, None, "t", "0", "eagle3", f"file:///{number}", "ab", "o", ("", ""))
            self.board.register(version, "l", "new")
        for number in range(2):
            self.now += 1.0
            self.board.move(number, VersionState.LIVE, "l", "better")

    def roll_out(self, replica, hold_s=HOLD_S):
        return StaggeredRollout(self.board, replica, hold_s, lambda: self.now)

    def beat(self, **drafting):
        for replica, number in drafting.items():
            self.board.beat(f"replica:{replica}", {"draft_version": number, "swap": "on"}, 1000.0)


@pytest.fixture
def house():
    return House()


def due(house, roll_out, *, own=0, passed_s=0.0):
    house.now += passed_s
    return roll_out.may_swap_now(house.board.read(), own)


def test_the_first_by_name_waits_for_nobody_and_the_next_ones_for_those_before_them_and_a_while(house):
    house.beat(a=0, b=0, c=0)
    a, b, c = map(house.roll_out, "abc")
    assert [due(house, each) for each in (a, b, c)] == [True, False, False]
    house.beat(a=1)
    assert [due(house, each) for each in (b, c)] == [False, False]
    assert not due(house, b, passed_s=HOLD_S - 0.1)
    assert due(house, b, passed_s=0.1)
    assert not due(house, c)
    house.beat(b=1)
    assert not due(house, c)
    assert due(house, c, passed_s=HOLD_S)


def test_one_that_does_not_get_on_holds_the_others_up_for_a_while_and_one_that_cannot_swap_not_at_all(house):
    house.beat(a=0)
    roll_out = house.roll_out("b")
    assert not due(house, roll_out)
    assert not due(house, roll_out, passed_s=STALLED_S - 0.1)
    assert due(house, roll_out, passed_s=0.1)
    house.board.beat("replica:a", {"draft_version": 0, "swap": "off"}, 1000.0)
    assert due(house, house.roll_out("b"))


def test_one_whose_canary_has_just_ended_takes_part(house):
    """Its heartbeat says so a second later, and a version promoted by hand has drafted nowhere yet."""
    roll_out = house.roll_out("b")
    house.board.beat("replica:a", {"draft_version": 2, "swap": "on", "is_canary": True}, 1000.0)
    assert not due(house, roll_out)
    house.beat(a=1)
    assert not due(house, roll_out)
    assert due(house, roll_out, passed_s=HOLD_S)


def test_a_version_waits_anew_behind_the_one_before_it(house):
    house.beat(a=1)
    roll_out = house.roll_out("b")
    due(house, roll_out)
    assert due(house, roll_out, passed_s=HOLD_S)
    house.board.move(2, VersionState.LIVE, "l", "better still")
    house.beat(a=2)
    assert not due(house, roll_out, own=1)
    assert due(house, roll_out, own=1, passed_s=HOLD_S)


def test_versions_that_come_faster_than_they_are_taken_over_reach_every_replica():
    house, names = House(), "abcdefghij"
    own = dict.fromkeys(names, 0)
    waiting = {name: house.roll_out(name) for name in names}
    for second in range(600):
        house.now += 1.0
        if second and second % 30 == 0:
            number = house.board.next_number() + 100
            version = DraftVersion(number, None, "t", "0", "eagle3", "file:///x", "ab", "o", ("", ""))
            house.board.register(version, "l", "new")
            house.board.move(number, VersionState.LIVE, "l", "better")
        house.beat(**own)
        state = house.board.read()
        for name in names:
            if own[name] != state.live and waiting[name].may_swap_now(state, own[name]):
                own[name] = state.live
    newest = sorted(number for number in house.board.read().rows if number > 100)
    assert set(own.values()) <= set(newest[-3:])


@pytest.mark.parametrize("told", [{"is_canary": True}, {}])
def test_a_replica_with_a_canary_is_not_waited_for(house, told):
    house.board.move(2, VersionState.CANARY, "l", "won", "a")
    house.board.beat("replica:a", {"draft_version": 2, "swap": "on", **told}, 1000.0)
    assert due(house, house.roll_out("b"))


def test_what_was_rolled_back_drafts_no_longer_than_it_must(house):
    house.beat(a=0)
    house.board.move(2, VersionState.CANARY, "l", "won", "b")
    house.board.move(0, VersionState.LIVE, "operator", "by hand")
    house.beat(a=1)
    assert due(house, house.roll_out("b"), own=2)
    assert not due(house, house.roll_out("b"), own=1)


def test_a_roll_back_and_replicas_without_a_hold_wait_for_nobody(house):
    house.beat(a=0)
    assert due(house, house.roll_out("b", hold_s=0.0))
    house.board.roll_back("operator", "worse")
    house.beat(a=1)
    assert due(house, house.roll_out("b"), own=1)


def test_a_canary_that_ends_because_another_version_goes_live_makes_that_no_roll_back(house):
    house.board.move(2, VersionState.CANARY, "l", "won", "a")
    house.board.move(0, VersionState.LIVE, "operator", "by hand")
    assert house.board.read().rows[2].state is VersionState.ROLLED_BACK
    assert not house.board.read().is_returned_to
    house.beat(a=1)
    assert not due(house, house.roll_out("b"), own=1)
