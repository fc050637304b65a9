"""How running requests of the live version begin reaches the canary's replica, and what a shift does then."""

import numpy as np
import pytest
from canary_fleet import DEAD, GOOD, Fleet, serve, verify
from paceline.buffer.board.member_status import BegunSaid, MemberStatus
from paceline.policies.canary import CanaryRules
from paceline.serving.watch.canary_trial import ALONE_S, HEAR_S, STALE_S
from paceline.serving.watch.draft_monitor import REPORTED_BEGINS
from paceline.serving.watch.request_rounds import FRESH_ROUNDS, RequestRounds
from said import said_by

CHECKPOINTS = sorted(CanaryRules().early_rounds)
KNOWN, NEW = 2.2, 0.7  # drafts accepted of three: of the traffic before the shift, and after it


def begun(monitor):
    return said_by(monitor).stretches.begun


def digest(name):
    return RequestRounds(request_id=name, checkpoints=CHECKPOINTS).digest


def run(monitor, name, version, lengths):
    """Rounds of a request that goes on."""
    for accepted in lengths:
        monitor.add(verify(name, version, accepted))


def lengths_of(rng, mean, rounds=24):
    return rng.binomial(3, mean / 3, rounds).tolist()


@pytest.fixture
def fleet():
    return Fleet()


def test_a_replica_tells_how_its_running_requests_began_until_they_end(fleet):
    run(fleet.other, "short", 0, [GOOD] * 3)
    assert begun(fleet.other) == []
    run(fleet.other, "one", 0, [1] * 4)
    run(fleet.other, "two", 0, [1] * 7 + [3])
    both = [BegunSaid(digest("one"), [4]), BegunSaid(digest("two"), [4, 10])]
    assert begun(fleet.other) == sorted(both, key=lambda row: row.digest, reverse=True)
    fleet.other.add(verify("two", 0, GOOD, "length"))
    assert begun(fleet.other) == [BegunSaid(digest("one"), [4])]
    run(fleet.other, "one", 0, [1] * (CHECKPOINTS[-1] + FRESH_ROUNDS - 4))
    assert begun(fleet.other) == [BegunSaid(digest("one"), CHECKPOINTS)]
    run(fleet.other, "one", 0, [1])  # all have heard of it
    assert begun(fleet.other) == []


def test_a_request_that_another_version_drafted_as_well_does_not_begin_here(fleet):
    run(fleet.other, "long", 7, [GOOD] * 8)
    run(fleet.other, "new", 0, [GOOD] * 4)
    run(fleet.other, "long", 0, [GOOD] * 8)
    assert begun(fleet.other) == [BegunSaid(digest("new"), [8])]


def test_of_many_running_requests_a_sample_is_told_that_stays_the_same_as_they_run_on(fleet):
    names = [f"r{number}" for number in range(3 * REPORTED_BEGINS)]
    for name in names:
        run(fleet.other, name, 0, [1] * 4)
    chosen = sorted(map(digest, names))[:REPORTED_BEGINS]
    assert begun(fleet.other) == [BegunSaid(name, [4]) for name in reversed(chosen)]
    for name in names:
        run(fleet.other, name, 0, [1] * 4)
    assert begun(fleet.other) == [BegunSaid(name, [4, 8]) for name in reversed(chosen)]


class ShiftedFleet(Fleet):
    """Traffic shifts as the canary comes; eight requests at a time on either replica, a round every 25 ms."""

    def __init__(self, rng, canary, live=NEW, report=lambda status: status):
        super().__init__()
        self.rng, self.report, self.rounds = rng, report, 0
        for number in range(60):
            serve(self.other, f"before-{number}", 0, lengths_of(rng, KNOWN))
        self.start_canary()
        self.slots = [(self.monitor, 1, canary, {}), (self.other, 0, live, {})]

    def tick(self, number):
        """One round of every request; heartbeats come four times a second, and not when the canary's replica reads."""
        for monitor, version, mean, left in self.slots:
            for slot in range(8):
                rounds = left.get(slot) or lengths_of(self.rng, mean, int(self.rng.integers(16, 32)))
                name = f"{version}-{slot}-{number + len(rounds)}"
                left[slot] = rounds[1:]
                monitor.add(verify(name, version, rounds[0], "" if left[slot] else "length"))
        self.now += 0.025
        if number % 10 == 7 or number == 0:
            self.board.beat("replica:other", self.report(said_by(self.other, at=self.now)), 60.0)
        self.monitor.turn(self.now)

    def rounds_until_out(self, ticks):
        """Rounds of the canary until it was rolled back, or None; requests are fewer than the trial's limit."""
        for number in range(ticks):
            self.tick(number)
            if self.state.canary is None:
                return 8 * (number + 1)
        return None


def test_a_shift_is_not_laid_to_an_equal_canary_that_comes_with_it():
    out = [ShiftedFleet(np.random.default_rng(seed), NEW).rounds_until_out(140) for seed in range(20)]
    assert sum(rounds is not None for rounds in out) <= 1


@pytest.mark.parametrize("live", [KNOWN, NEW])
def test_a_dead_canary_is_out_within_two_hundred_rounds_with_and_without_a_shift(live):
    out = [ShiftedFleet(np.random.default_rng(seed), 0.0, live).rounds_until_out(140) for seed in range(10)]
    assert max(out) <= 200


def without_begins(said):
    said.stretches.begun = []
    return said


def test_a_replica_that_tells_of_no_begins_is_a_live_arm_by_the_requests_that_have_ended():
    steady = [
        ShiftedFleet(np.random.default_rng(seed), mean, KNOWN, without_begins).rounds_until_out(140)
        for mean in (KNOWN, 0.0)
        for seed in range(10)
    ]
    assert sum(rounds is not None for rounds in steady[:10]) <= 1
    assert max(steady[10:]) <= 200


@pytest.mark.parametrize(
    "wrong",
    [
        [BegunSaid("a", []), BegunSaid("a", [-1])],
        [BegunSaid("a", [4, 3]), BegunSaid("a", [1, 2, 3, 4, 5]), BegunSaid("a", [2**40])],
    ],
)
def test_begins_that_make_no_sense_are_left_out(fleet, wrong):
    serve(fleet.other, "before", 0, [GOOD] * 4)
    fleet.start_canary()
    run(fleet.monitor, "c", 1, [GOOD])
    for number in range(2):
        told = said_by(fleet.other)
        told.stretches.begun = wrong
        fleet.board.beat("replica:other", told, 60.0)
        fleet.now += 1.0 + number
        fleet.monitor.turn(fleet.now)
    test = fleet.monitor._trial._test
    assert not test.has_live_begins
    assert [len(each.by_history._live) for each in test._begins._tests] == [1] * len(CHECKPOINTS)


def is_out_after(fleet, said, own_offset_s):
    """Eight dead requests of a canary beside eight live ones that a heartbeat tells of; `said`: what else it says."""
    fleet.now = 1000.0
    for number in range(60):
        serve(fleet.other, f"before-{number}", 0, [GOOD] * 4)
    fleet.start_canary()
    run(fleet.monitor, "first", 1, [DEAD])
    fleet.turn()
    for slot in range(8):
        run(fleet.other, f"live-{slot}", 0, [GOOD] * 8)
        run(fleet.monitor, f"c-{slot}", 1, [DEAD] * 8)
    if own_offset_s is not None:
        fleet.board.beat("replica:rep", MemberStatus(clock_offset_s=own_offset_s), 60.0)
    fleet.board.beat("replica:other", said_by(fleet.other, **said), 60.0)
    fleet.now += HEAR_S
    fleet.monitor.turn(fleet.now)
    return fleet.state.canary is None


@pytest.mark.parametrize(
    ("said", "own_offset_s", "is_out"),
    [
        ({"at": 1001.2}, None, True),
        ({"at": 1000.9}, None, False),  # made before these rounds of the canary were served
        ({"at": 1001.2 - STALE_S - 0.1}, None, True),  # too old to be waited for
        ({}, None, True),
        ({"at": None}, None, True),
        ({"at": 1e300}, None, True),
        ({"at": 1000.9, "clock_offset_s": -0.5}, 0.0, True),  # its clock is late
        ({"at": 1001.2, "clock_offset_s": 0.5}, 0.0, False),
        ({"at": 1001.2, "clock_offset_s": 0.5}, None, True),  # how far off this host is is not known
    ],
)
def test_the_canarys_begins_wait_for_a_heartbeat_of_their_time(fleet, said, own_offset_s, is_out):
    assert is_out_after(fleet, said, own_offset_s) == is_out


def test_without_a_live_begin_history_decides_after_two_seconds(fleet):
    for number in range(60):
        serve(fleet.other, f"before-{number}", 0, [GOOD] * 4)
    fleet.start_canary()
    run(fleet.monitor, "first", 1, [DEAD])
    fleet.turn()
    began = fleet.now
    for slot in range(8):
        run(fleet.monitor, f"c-{slot}", 1, [DEAD] * 8)
    while fleet.state.canary is not None:
        assert fleet.now < began + ALONE_S
        fleet.now += HEAR_S
        fleet.board.beat("replica:other", said_by(fleet.other, at=fleet.now), 60.0)
        fleet.monitor.turn(fleet.now)
    assert fleet.now == pytest.approx(began + ALONE_S)
    assert fleet.state.rows[1].why.figures["beside"] == "so far"
