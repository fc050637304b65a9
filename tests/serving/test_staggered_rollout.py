"""Replicas swap a new live version in one after another, by name; a rollback waits for nobody."""

import pytest
from fleet import publish, version
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.version import VersionState
from paceline.serving.swap.staggered_rollout import STALLED_S, StaggeredRollout
from twins.memory_board import MemoryVersionBoard

HOLD_S = 5.0


class Fleet:
    """A board on which version 1 has just gone live after 0, and a clock."""

    def __init__(self):
        self.now = 100.0
        self.board = MemoryVersionBoard(lambda: self.now)
        for number in range(3):
            self.board.register(version(number), "l", "new")
        for number in range(2):
            self.now += 1.0
            self.board.move(number, VersionState.LIVE, "l", "better")

    def rollout(self, replica, hold_s=HOLD_S):
        return StaggeredRollout(self.board, replica, hold_s, lambda: self.now)

    def beat(self, **drafting):
        for replica, number in drafting.items():
            self.board.beat(f"replica:{replica}", MemberStatus(draft_version=number, swap="on"), 1000.0)


@pytest.fixture
def fleet():
    return Fleet()


def due(fleet, rollout, *, own=0, passed_s=0.0):
    fleet.now += passed_s
    return rollout.may_swap_now(fleet.board.read(), own)


def test_the_first_by_name_waits_for_nobody_and_the_next_ones_for_those_before_them_and_a_while(fleet):
    fleet.beat(a=0, b=0, c=0)
    a, b, c = map(fleet.rollout, "abc")
    assert [due(fleet, each) for each in (a, b, c)] == [True, False, False]
    fleet.beat(a=1)
    assert [due(fleet, each) for each in (b, c)] == [False, False]
    assert not due(fleet, b, passed_s=HOLD_S - 0.1)
    assert due(fleet, b, passed_s=0.1)
    assert not due(fleet, c)
    fleet.beat(b=1)
    assert not due(fleet, c)
    assert due(fleet, c, passed_s=HOLD_S)


def test_one_without_progress_delays_the_others_for_a_while_and_one_that_cannot_swap_does_not(fleet):
    fleet.beat(a=0)
    rollout = fleet.rollout("b")
    assert not due(fleet, rollout)
    assert not due(fleet, rollout, passed_s=STALLED_S - 0.1)
    assert due(fleet, rollout, passed_s=0.1)
    fleet.board.beat("replica:a", MemberStatus(draft_version=0, swap="off"), 1000.0)
    assert due(fleet, fleet.rollout("b"))


def test_one_whose_canary_has_just_ended_takes_part(fleet):
    """Its heartbeat reports that a second later, and a version the operator promoted has drafted nowhere yet."""
    rollout = fleet.rollout("b")
    fleet.board.beat("replica:a", MemberStatus(draft_version=2, swap="on", is_canary=True), 1000.0)
    assert not due(fleet, rollout)
    fleet.beat(a=1)
    assert not due(fleet, rollout)
    assert due(fleet, rollout, passed_s=HOLD_S)


def test_every_version_waits_for_the_replicas_before_this_one(fleet):
    fleet.beat(a=1)
    rollout = fleet.rollout("b")
    due(fleet, rollout)
    assert due(fleet, rollout, passed_s=HOLD_S)
    fleet.board.move(2, VersionState.LIVE, "l", "better still")
    fleet.beat(a=2)
    assert not due(fleet, rollout, own=1)
    assert due(fleet, rollout, own=1, passed_s=HOLD_S)


def test_versions_that_come_faster_than_they_are_swapped_in_reach_every_replica():
    fleet, names = Fleet(), "abcdefghij"
    own = dict.fromkeys(names, 0)
    waiting = {name: fleet.rollout(name) for name in names}
    for second in range(600):
        fleet.now += 1.0
        if second and second % 30 == 0:
            number = fleet.board.next_number() + 100
            publish(fleet.board, number)
        fleet.beat(**own)
        state = fleet.board.read()
        for name in names:
            if own[name] != state.live and waiting[name].may_swap_now(state, own[name]):
                own[name] = state.live
    newest = sorted(number for number in fleet.board.read().rows if number > 100)
    assert set(own.values()) <= set(newest[-3:])


def test_a_large_fleet_is_not_read_by_everyone_every_second(fleet, monkeypatch):
    """A replica swaps when its place among the others says so, by reads that do not grow with its wait."""
    names = [f"{place:02}" for place in range(40)]
    own = dict.fromkeys(names, 0)
    waiting = {name: fleet.rollout(name) for name in names}
    reads = []
    heartbeats = fleet.board.heartbeats
    monkeypatch.setattr(fleet.board, "heartbeats", lambda: reads.append(fleet.now) or heartbeats())
    swapped = []
    began = fleet.now
    while len(swapped) < len(names) and fleet.now < began + 400.0:
        fleet.now += 1.0
        fleet.beat(**own)
        state = fleet.board.read()
        for name in names:
            if own[name] != state.live and waiting[name].may_swap_now(state, own[name]):
                own[name] = state.live
                swapped.append((name, fleet.now - began))
    # Each sees the one before it a second later, and holds for HOLD_S.
    assert swapped == [(name, 1.0 + place * (1.0 + HOLD_S)) for place, name in enumerate(names)]
    waits_s = sum(at for _, at in swapped)
    assert len(reads) < waits_s / 4


@pytest.mark.parametrize("reported", [{"is_canary": True}, {}])
def test_a_replica_with_a_canary_is_not_waited_for(fleet, reported):
    fleet.board.move(2, VersionState.CANARY, "l", "won", replica="a")
    fleet.board.beat("replica:a", MemberStatus(draft_version=2, swap="on", **reported), 1000.0)
    assert due(fleet, fleet.rollout("b"))


def test_a_rolled_back_version_is_replaced_at_once(fleet):
    fleet.beat(a=0)
    fleet.board.move(2, VersionState.CANARY, "l", "won", replica="b")
    fleet.board.move(0, VersionState.LIVE, "operator", "by hand")
    fleet.beat(a=1)
    assert due(fleet, fleet.rollout("b"), own=2)
    assert not due(fleet, fleet.rollout("b"), own=1)


def test_a_roll_back_and_replicas_without_a_hold_wait_for_nobody(fleet):
    fleet.beat(a=0)
    assert due(fleet, fleet.rollout("b", hold_s=0.0))
    fleet.board.roll_back("operator", "worse")
    fleet.beat(a=1)
    assert due(fleet, fleet.rollout("b"), own=1)


def test_a_version_that_goes_live_and_ends_a_canary_is_not_a_rollback(fleet):
    fleet.board.move(2, VersionState.CANARY, "l", "won", replica="a")
    fleet.board.move(0, VersionState.LIVE, "operator", "by hand")
    assert fleet.board.read().rows[2].state is VersionState.ROLLED_BACK
    assert not fleet.board.read().is_returned_to
    fleet.beat(a=1)
    assert not due(fleet, fleet.rollout("b"), own=1)
