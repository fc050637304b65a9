"""A canary is decided by its rounds against the other replicas', and a live draft that dies in silence is taken off."""

import numpy as np
import pytest
from paceline.buffer.errors import BufferUnavailable, DecodeError
from paceline.buffer.testing.memory_board import MemoryVersionBoard
from paceline.buffer.trace import FeatureDtype
from paceline.buffer.version import DraftVersion, VersionState
from paceline.policies.canary import CanaryRules
from paceline.policies.guard import AlarmName, GuardLimits
from paceline.serving.watch.canary_trial import READ_S
from paceline.serving.watch.draft_monitor import DraftMonitor
from paceline.serving.wire.request_forward import NO_FEATURES, Commit, RequestVerify

RULES = CanaryRules(max_requests=60)
DEAD, GOOD = 0, 2


def step(request_id, version, accepted, finish="", drafted=(0, 1, 2), text=5):
    drafted, ids = np.array(drafted, np.int32), np.zeros((4, 0), np.int32)
    commit = Commit(1, (text,) * (accepted + 1), finish)
    return RequestVerify(
        request_id, version, 3, 7, drafted, accepted, ids, ids.astype(np.float16), NO_FEATURES, FeatureDtype.FLOAT32,
        commit,
    )  # fmt: skip


class House:
    """A board with version 0 live and 1 as canary on `rep`, which `other` is held against."""

    def __init__(self, limits=None):
        self.now = 1000.0
        self.board = MemoryVersionBoard(lambda: self.now)
        for number in range(2):
            version = DraftVersion(number, None, "t", "0", "eagle3", f"file:///{number}", "ab", "o", ("", ""))
            self.board.register(version, "l", "new")
        self.board.move(0, VersionState.LIVE, "l", "start")
        self.limits = limits or GuardLimits()
        self.watch, self.other = self.new("rep"), self.new("other")

    def new(self, replica, **more):
        return DraftMonitor(self.board, replica, RULES, self.limits, **more)

    def let_on(self):
        self.board.move(1, VersionState.CANARY, "l", "won the gate", "rep")

    def turn(self):
        self.now += READ_S
        self.board.beat("replica:other", self.other.status(), 60.0)
        self.watch.turn(self.now)

    @property
    def state(self):
        return self.board.read()


@pytest.fixture
def house():
    return House()


def serve(watch, name, version, lengths):
    for number, accepted in enumerate(lengths):
        watch.add(step(name, version, accepted, "length" if number == len(lengths) - 1 else ""))


def lengths_of(rng, mean):
    return rng.binomial(3, mean / 3, 24).tolist()


def rounds_until_decided(house, mean, most):
    """Rounds of the canary, eight requests at a time, until it is one no more."""
    rng, rounds = np.random.default_rng(0), 0
    for number in range(60):
        serve(house.other, f"live-{number}", 0, lengths_of(rng, 1.5))
    house.let_on()
    while house.state.canary is not None:
        for slot in range(8):
            house.watch.add(step(f"c{rounds // 192}-{slot}", 1, int(rng.binomial(3, mean / 3)), ""))
            rounds += 1
        house.turn()
        assert rounds < most, f"undecided after {most} rounds"
    return rounds


def test_a_dead_canary_is_out_within_two_hundred_rounds_and_says_why(house):
    assert rounds_until_decided(house, 0.0, 200) <= 72
    row = house.state.rows[1]
    assert (house.state.live, row.state) == (0, VersionState.ROLLED_BACK)
    assert "rounds of its requests accept far less" in row.why
    assert house.board.events()[-1].by == "replica:rep"
    assert not house.watch.is_on_trial


def test_a_better_canary_goes_live(house):
    rng = np.random.default_rng(1)
    house.let_on()
    for number in range(60):
        serve(house.other, f"live-{number}", 0, lengths_of(rng, 1.0))
        serve(house.watch, f"canary-{number}", 1, lengths_of(rng, 2.0))
        house.turn()
    assert (house.state.live, house.state.canary) == (1, None)
    assert "lies above zero" in house.state.rows[1].why


def test_without_rounds_of_the_live_version_nothing_is_decided(house):
    house.let_on()
    for number in range(20):
        serve(house.watch, f"canary-{number}", 1, [DEAD] * 8)
        house.turn()
    assert house.state.canary == 1
    assert house.watch.is_on_trial


def test_rounds_of_another_version_than_the_live_one_are_not_the_live_arm(house):
    rng = np.random.default_rng(0)
    for number in range(60):
        serve(house.other, f"old-{number}", 7, lengths_of(rng, 1.5))
    house.let_on()
    for number in range(20):
        serve(house.watch, f"canary-{number}", 1, [DEAD] * 8)
        house.turn()
    assert house.state.canary == 1


def test_a_version_that_is_no_canary_here_is_not_on_trial(house):
    house.board.move(1, VersionState.CANARY, "l", "won the gate", "elsewhere")
    serve(house.watch, "a", 1, [DEAD] * 8)
    house.turn()
    assert not house.watch.is_on_trial


def test_an_operator_decides_before_the_trial_does(house):
    rng = np.random.default_rng(0)
    for number in range(60):
        serve(house.other, f"live-{number}", 0, lengths_of(rng, 1.5))
    house.let_on()
    serve(house.watch, "first", 1, [DEAD])
    house.turn()
    assert house.watch.is_on_trial
    house.board.move(1, VersionState.LIVE, "operator:me", "I know better")
    for number in range(20):
        serve(house.watch, f"canary-{number}", 1, [DEAD] * 8)
    house.turn()
    assert (house.watch.is_on_trial, house.state.live) == (False, 1)


@pytest.mark.parametrize("call", ["read", "heartbeats"])
def test_while_the_board_is_away_rounds_are_counted_and_decided_later(house, monkeypatch, call):
    rng = np.random.default_rng(0)
    for number in range(60):
        serve(house.other, f"live-{number}", 0, lengths_of(rng, 1.5))
    house.let_on()

    def away():
        raise BufferUnavailable("Redis at nowhere: gone")

    with monkeypatch.context() as gone:
        gone.setattr(house.board, call, away)
        for number in range(20):
            serve(house.watch, f"canary-{number}", 1, [DEAD] * 8)
            house.watch.turn(house.now)
    house.turn()
    assert house.state.rows[1].state is VersionState.ROLLED_BACK


def serve_watch(house, name, version, accepted):
    """Fifty rounds of five requests."""
    for number in range(5):
        serve(house.watch, f"{name}-{number}", version, [accepted] * 10)


@pytest.mark.guarantee("alarm-silent-death")
def test_a_live_draft_that_dies_is_rolled_back_once():
    house = House(GuardLimits(min_rounds=50))
    house.board.move(1, VersionState.LIVE, "l", "better")
    serve_watch(house, "good", 1, GOOD)
    house.turn()
    for number in range(5):
        serve(house.watch, f"dead-{number}", 1, [DEAD] * (9 if number else 10))
    house.turn()
    assert house.state.live == 1  # 46 rounds
    serve(house.watch, "last", 1, [DEAD] * 4)
    house.turn()
    assert (house.state.live, house.state.rows[1].state) == (0, VersionState.ROLLED_BACK)
    (alarm,) = house.watch.status()["alarms"]
    assert (alarm["name"], alarm["version"]) == (AlarmName.SILENT_DEATH, 1)
    assert alarm["reading"] == "accept length 1.000 over 50 rounds, 3.000 before"


def test_a_version_that_was_returned_to_stays_for_then_it_is_the_traffic():
    house = House(GuardLimits(min_rounds=50))
    for number in (1, 2):
        version = DraftVersion(number, None, "t", "0", "eagle3", "file:///x", "ab", "o", ("", ""))
        if number == 2:
            house.board.register(version, "l", "new")
        house.board.move(number, VersionState.LIVE, "l", "better")
    house.now += 5.0
    house.board.roll_back("replica:other", "silent_death: it saw the shift first")
    serve_watch(house, "good", 1, GOOD)
    house.turn()
    serve_watch(house, "dead", 1, DEAD)
    house.turn()
    assert house.state.live == 1
    assert [alarm["version"] for alarm in house.watch.status()["alarms"]] == [1]


@pytest.mark.guarantee("alarm-degenerate-draft")
@pytest.mark.parametrize(
    ("drafted", "text", "is_out"), [((9, 9, 9), 5, True), ((9, 8, 7), 5, False), ((9, 9, 9), 9, False)]
)
def test_a_draft_that_says_one_token_whatever_the_text_is_rolled_back(drafted, text, is_out):
    house = House(GuardLimits(min_rounds=50))
    house.board.move(1, VersionState.LIVE, "l", "better")
    for request in range(5):
        for number in range(10):
            house.watch.add(step(f"r{request}", 1, 1, "length" if number == 9 else "", drafted, text))
    house.turn()
    row = house.state.rows[1]
    assert (row.state is VersionState.ROLLED_BACK) == is_out
    assert [alarm["name"] for alarm in house.watch.status()["alarms"]] == [AlarmName.DEGENERATE_DRAFT] * is_out
    assert row.why.startswith("degenerate_draft: 100% of 150 drafts are one token, 0% of the text is") == is_out


@pytest.mark.guarantee("one-request-decides-nothing")
def test_one_request_alone_raises_no_alarm():
    house = House(GuardLimits(min_rounds=50))
    house.board.move(1, VersionState.LIVE, "l", "better")
    serve_watch(house, "good", 1, GOOD)
    house.turn()
    serve(house.watch, "stubborn", 1, [DEAD] * 500)
    house.turn()
    assert (house.state.live, house.watch.status()["alarms"]) == (1, [])


@pytest.mark.guarantee("one-request-decides-nothing")
def test_one_request_that_nothing_can_draft_takes_no_draft_down_in_company():
    house = House(GuardLimits(min_rounds=50))
    house.board.move(1, VersionState.LIVE, "l", "better")
    serve_watch(house, "good", 1, GOOD)
    house.turn()
    serve(house.watch, "stubborn", 1, [DEAD] * 2000)
    for name in "abc":
        serve(house.watch, name, 1, [3] * 10)
        house.turn()
    assert (house.state.live, house.watch.status()["alarms"]) == (1, [])


def test_an_alarm_that_nobody_can_act_on_is_raised_once():
    house = House(GuardLimits(min_rounds=50))
    for watch in range(3):
        for request in range(5):
            for number in range(10):
                finish = "length" if number == 9 else ""
                house.watch.add(step(f"{watch}-{request}", 0, 1, finish, drafted=(9, 9, 9), text=5))
        house.turn()
    assert [alarm["name"] for alarm in house.watch.status()["alarms"]] == [AlarmName.DEGENERATE_DRAFT]


def test_a_dead_canary_is_out_by_requests_that_ran_when_it_came(house):
    rng = np.random.default_rng(0)
    for number in range(60):
        serve(house.other, f"live-{number}", 0, lengths_of(rng, 1.5))
    for slot in range(8):
        house.watch.add(step(f"long-{slot}", 0, GOOD))
    house.let_on()
    for round_ in range(13):
        assert house.state.canary == 1, round_
        for slot in range(8):
            house.watch.add(step(f"long-{slot}", 1, DEAD))
        house.turn()
    row = house.state.rows[1]
    assert (row.state, row.why[:42]) == (VersionState.ROLLED_BACK, "silent_death: accept length 1.000 over 104")


@pytest.mark.guarantee("unreadable-board")
def test_an_unreadable_board_leaves_the_counting_and_everything_else_alone(house, monkeypatch, caplog):
    def unreadable():
        raise DecodeError("board event 1-1: nonsense", b"x")

    monkeypatch.setattr(house.board, "read", unreadable)
    for name in "abc":
        serve(house.watch, name, 1, [DEAD] * 8)
        house.watch.turn(house.now)
    assert len(house.watch.status()["stretches"]["ended"]) == 3
    assert caplog.text.count("is not watched: board event 1-1: nonsense") == 1


def test_a_draft_that_was_never_good_raises_no_alarm():
    house = House(GuardLimits(min_rounds=50))
    for number in range(4):
        serve_watch(house, f"cold-{number}", 0, DEAD)
        house.turn()
    assert house.watch.status()["alarms"] == []
    assert house.state.live == 0


def test_requests_that_run_when_the_version_changes_are_left_out(house):
    house.watch.add(step("long", 0, GOOD))
    house.watch.add(step("long", 1, DEAD))
    house.watch.add(step("new", 1, GOOD))
    house.watch.add(step("long", 1, DEAD, "length"))
    house.watch.add(step("new", 1, DEAD, "length"))
    stretches = house.watch.status()["stretches"]
    assert (stretches["version"], [ended[1:] for ended in stretches["ended"]]) == (1, [[[], GOOD, 2]])


def alternate(house, canary_mean, windows):
    """Windows of ten requests in turns on the one replica; the last of each runs on into the next window."""
    rng = np.random.default_rng(1000)
    for number in range(20):
        serve(house.watch, f"before-{number}", 0, lengths_of(rng, 1.5))
    house.let_on()
    for window in range(windows):
        version, mean = (0, 1.5) if window % 2 else (1, canary_mean)
        for number in range(9):
            serve(house.watch, f"w{window}-{number}", version, lengths_of(rng, mean))
            house.turn()
        house.watch.add(step(f"w{window}-long", version, GOOD))
        if house.state.canary is None:
            return window
    return windows


@pytest.mark.parametrize(("mean", "live", "word"), [(0.0, 0, "accept far less"), (2.4, 1, "lies above zero")])
def test_on_a_single_replica_windows_of_both_versions_decide(mean, live, word):
    house = House()
    house.watch = house.new("rep", alternates=True)
    ended_in = alternate(house, mean, 20)
    assert (house.state.live, house.state.canary) == (live, None)
    assert word in house.state.rows[1].why
    assert ended_in < (1 if live == 0 else 20)


def test_the_live_arm_of_a_single_replica_is_what_it_served_before_and_between():
    house = House()
    house.watch = house.new("rep", alternates=True)
    alternate(house, 1.5, 4)
    # 20 requests before, 9 in each of two windows that ended, 24 rounds each, and a first round of the long ones.
    assert house.watch._trial.live.rounds == 24 * (20 + 2 * 9) + 2
    verdict = house.watch._trial._test.verdict()
    assert (verdict.canary.rounds, verdict.live.rounds) == (24 * 18 + 2, 24 * 18 + 2)  # what came before is no arm


def test_a_live_version_is_held_against_its_own_turns_and_not_against_the_canarys():
    house = House(GuardLimits(min_rounds=50))
    house.watch = house.new("rep", alternates=True)
    house.board.move(1, VersionState.LIVE, "l", "better")
    version = DraftVersion(2, None, "t", "0", "eagle3", "file:///2", "ab", "o", ("", ""))
    house.board.register(version, "l", "new")
    serve_watch(house, "low", 1, DEAD)  # the traffic has shifted, and it was left alone
    house.turn()
    house.board.move(2, VersionState.CANARY, "l", "won", "rep")
    serve_watch(house, "canary", 2, GOOD)
    house.turn()
    serve_watch(house, "turn", 1, DEAD)
    house.turn()
    assert house.watch.status()["alarms"] == []
    assert (house.state.live, house.state.canary) == (1, 2)


def test_what_a_request_serves_behind_a_turn_counts_for_neither_however_many_turns_it_lives_through(house):
    house.watch = house.new("rep", alternates=True)
    house.let_on()
    for version in (0, 1, 0, 1):
        for _ in range(5):
            house.watch.add(step("long", version, GOOD))
        house.turn()
    house.watch.add(step("long", 1, GOOD, "length"))
    verdict = house.watch._trial._test.verdict()
    assert (verdict.canary.rounds, verdict.live.rounds) == (0, 0)
    house.watch.add(step("long", 1, GOOD))  # the id is free again
    assert house.watch._trial._test.verdict().canary.rounds == 1


@pytest.mark.parametrize("alternates", [False, True])
def test_a_bad_canary_is_not_promoted_because_the_traffic_before_it_was_hard(alternates):
    house = House()
    house.watch = house.new("rep", alternates=alternates)
    rng = np.random.default_rng(0)
    before = house.watch if alternates else house.other
    for number in range(64):
        serve(before, f"hard-{number}", 0, [DEAD] * 24)
    house.let_on()
    for number in range(60):
        serve(house.watch, f"canary-{number}", 1, lengths_of(rng, 0.5))
        if not alternates:
            serve(house.other, f"live-{number}", 0, lengths_of(rng, 1.5))
        elif number % 4 == 3:
            for turn in range(4):
                serve(house.watch, f"live-{number}-{turn}", 0, lengths_of(rng, 1.5))
        house.turn()
        assert house.state.live == 0
    assert house.state.rows[1].state is VersionState.ROLLED_BACK
    assert "lies below zero" in house.state.rows[1].why
