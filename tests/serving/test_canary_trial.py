"""A canary is decided by its rounds against the other replicas', and a live draft that collapses is rolled back."""

import numpy as np
import pytest
from canary_fleet import DEAD, GOOD, RULES, Fleet, lengths_of, serve, verify
from fleet import publish, version
from paceline.buffer.board.member_status import ArmSaid, TrialSaid
from paceline.buffer.board.reason import ReasonCode
from paceline.buffer.board.version import VersionState
from paceline.buffer.errors import BufferUnavailable, DecodeError
from paceline.buffer.stream.trace import NO_DRAFT
from paceline.policies.guard import AlarmName, GuardLimits
from paceline.policies.verdict_words import sentence
from paceline.serving.wire.request_forward import Commit
from said import said_by


@pytest.fixture
def fleet():
    return Fleet()


def serve_live(fleet):
    """Sixty requests of the live version beside the canary; the generator that drew them."""
    rng = np.random.default_rng(0)
    for number in range(60):
        serve(fleet.other, f"live-{number}", 0, lengths_of(rng, 1.5))
    return rng


def rounds_until_decided(fleet, mean, most):
    """Rounds of the canary, of eight requests at a time, until it is decided."""
    rng, rounds = serve_live(fleet), 0
    fleet.start_canary()
    while fleet.state.canary is not None:
        for slot in range(8):
            fleet.monitor.add(verify(f"c{rounds // 192}-{slot}", 1, int(rng.binomial(3, mean / 3)), ""))
            rounds += 1
        fleet.turn()
        assert rounds < most, f"undecided after {most} rounds"
    return rounds


def test_a_dead_canary_is_out_within_two_hundred_rounds_with_the_reason(fleet):
    assert rounds_until_decided(fleet, 0.0, 200) <= 72
    row = fleet.state.rows[1]
    assert (fleet.state.live, row.state) == (0, VersionState.ROLLED_BACK)
    assert row.why.code is ReasonCode.CANARY_HARMS
    assert fleet.board.events()[-1].by == "replica:rep"
    assert not fleet.monitor.is_on_trial


@pytest.mark.parametrize("set_back_s", [0.0, 3600.0])
def test_a_clock_set_back_keeps_no_dead_canary_beside_a_live_arm_that_is_idle(fleet, set_back_s):
    serve_live(fleet)
    turns = 0
    fleet.start_canary()
    fleet.monitor.add(verify("first", 1, DEAD))
    fleet.turn()
    fleet.now -= set_back_s
    while fleet.state.canary is not None and turns < 20:
        serve(fleet.monitor, f"canary-{turns}", 1, [DEAD] * 24)
        fleet.turn()
        turns += 1
    assert fleet.state.rows[1].why.figures["beside"] == "so far"
    assert turns < 20


def test_a_request_whose_client_left_is_looked_at_with_what_it_has(fleet):
    """As in the live arm: here no request reaches the first length that is looked at."""
    rng = np.random.default_rng(0)
    for number in range(60):
        serve(fleet.other, f"live-{number}", 0, lengths_of(rng, 2.5)[:3])
    fleet.start_canary()
    for number in range(RULES.min_requests - 1):  # before there can be an interval
        serve(fleet.other, f"more-{number}", 0, lengths_of(rng, 2.5)[:3])
        for _ in range(3):
            fleet.monitor.add(verify(f"canary-{number}", 1, DEAD))
        fleet.monitor.add(verify(f"canary-{number}", 1, 0)._replace(commit=Commit(-1, (), "abort")))
        fleet.turn()
    assert fleet.state.rows[1].state is VersionState.ROLLED_BACK
    assert fleet.state.rows[1].why.code is ReasonCode.CANARY_HARMS


def test_a_better_canary_goes_live(fleet):
    rng = np.random.default_rng(1)
    fleet.start_canary()
    for number in range(60):
        serve(fleet.other, f"live-{number}", 0, lengths_of(rng, 1.0))
        serve(fleet.monitor, f"canary-{number}", 1, lengths_of(rng, 2.0))
        fleet.turn()
    assert (fleet.state.live, fleet.state.canary) == (1, None)
    assert fleet.state.rows[1].why.code is ReasonCode.CANARY_GAINS


def test_a_trials_figures_are_in_the_status_of_the_replica_that_runs_it(fleet):
    assert said_by(fleet.monitor).trial is None
    fleet.start_canary()
    serve(fleet.monitor, "first", 1, [GOOD] * 4)
    fleet.turn()
    assert said_by(fleet.monitor).trial == TrialSaid(
        version=1,
        canary=ArmSaid(requests=1, rounds=4, accept_length=3.0),
        live=ArmSaid(requests=0, rounds=0),
        looks=1,
        requests_left=59,
    )
    rng = np.random.default_rng(1)
    for number in range(RULES.min_requests + 1):  # the first is history: it had ended when its replica was met
        serve(fleet.other, f"live-{number}", 0, lengths_of(rng, 1.5))
        serve(fleet.monitor, f"canary-{number}", 1, lengths_of(rng, 1.5))
        fleet.turn()
    found = said_by(fleet.monitor).trial
    assert (found.live.requests, found.looks) == (RULES.min_requests, 2 + RULES.min_requests)
    assert found.requests_left == 60 - found.canary.requests
    gain = found.canary.accept_length - found.live.accept_length
    assert found.gain == pytest.approx(gain, abs=1e-3)
    assert found.interval[0] < gain < found.interval[1]
    assert said_by(fleet.other).trial is None


def test_without_rounds_of_the_live_version_nothing_is_decided(fleet):
    fleet.start_canary()
    for number in range(20):
        serve(fleet.monitor, f"canary-{number}", 1, [DEAD] * 8)
        fleet.turn()
    assert fleet.state.canary == 1
    assert fleet.monitor.is_on_trial


def test_rounds_of_another_version_than_the_live_one_are_not_the_live_arm(fleet):
    rng = np.random.default_rng(0)
    for number in range(60):
        serve(fleet.other, f"old-{number}", 7, lengths_of(rng, 1.5))
    fleet.start_canary()
    for number in range(20):
        serve(fleet.monitor, f"canary-{number}", 1, [DEAD] * 8)
        fleet.turn()
    assert fleet.state.canary == 1


def test_a_version_that_is_not_the_canary_here_is_not_on_trial(fleet):
    fleet.board.move(1, VersionState.CANARY, "l", "won the gate", replica="elsewhere")
    serve(fleet.monitor, "a", 1, [DEAD] * 8)
    fleet.turn()
    assert not fleet.monitor.is_on_trial


def test_an_operator_decides_before_the_trial_does(fleet):
    serve_live(fleet)
    fleet.start_canary()
    serve(fleet.monitor, "first", 1, [DEAD])
    fleet.turn()
    assert fleet.monitor.is_on_trial
    fleet.board.move(1, VersionState.LIVE, "operator:me", "I know better")
    for number in range(20):
        serve(fleet.monitor, f"canary-{number}", 1, [DEAD] * 8)
    fleet.turn()
    assert (fleet.monitor.is_on_trial, fleet.state.live) == (False, 1)


@pytest.mark.parametrize("call", ["read", "heartbeats"])
def test_while_the_board_is_away_rounds_are_counted_and_decided_later(fleet, monkeypatch, call):
    serve_live(fleet)
    fleet.start_canary()

    def away():
        raise BufferUnavailable("Redis at nowhere: gone")

    with monkeypatch.context() as gone:
        gone.setattr(fleet.board, call, away)
        for number in range(20):
            serve(fleet.monitor, f"canary-{number}", 1, [DEAD] * 8)
            fleet.monitor.turn(fleet.now)
    fleet.turn()
    assert fleet.state.rows[1].state is VersionState.ROLLED_BACK


def serve_interval(fleet, name, version, accepted):
    """Fifty rounds of five requests."""
    for number in range(5):
        serve(fleet.monitor, f"{name}-{number}", version, [accepted] * 10)


@pytest.mark.guarantee("alarm-silent-death")
def test_a_live_draft_that_dies_is_rolled_back_once():
    fleet = Fleet(GuardLimits(min_rounds=50))
    fleet.board.move(1, VersionState.LIVE, "l", "better")
    serve_interval(fleet, "good", 1, GOOD)
    fleet.turn()
    for number in range(5):
        serve(fleet.monitor, f"dead-{number}", 1, [DEAD] * (9 if number else 10))
    fleet.turn()
    assert fleet.state.live == 1  # 46 rounds
    serve(fleet.monitor, "last", 1, [DEAD] * 4)
    fleet.turn()
    assert (fleet.state.live, fleet.state.rows[1].state) == (0, VersionState.ROLLED_BACK)
    (alarm,) = said_by(fleet.monitor).alarms
    assert (alarm.name, alarm.version) == (AlarmName.SILENT_DEATH, 1)
    assert alarm.figures == {"length": 1.0, "rounds": 50, "length_before": 3.0}


@pytest.mark.guarantee("alarm-silent-death")
def test_one_request_that_a_dead_draft_repeats_by_chance_hides_it_for_an_interval_only():
    fleet = Fleet(GuardLimits(min_rounds=50))
    serve_interval(fleet, "good", 0, GOOD)
    fleet.turn()
    fleet.board.move(1, VersionState.LIVE, "l", "dead on arrival")
    serve(fleet.monitor, "by chance", 1, [1] * 4 + [DEAD] * 6)  # 1.08 over the fifty rounds: neither alive nor dead
    for number in range(4):
        serve(fleet.monitor, f"first-{number}", 1, [DEAD] * 10)
    fleet.turn()
    assert fleet.state.live == 1
    serve_interval(fleet, "later", 1, DEAD)
    fleet.turn()
    assert fleet.state.live == 0
    (alarm,) = said_by(fleet.monitor).alarms
    assert alarm.figures == {"length": 1.0, "rounds": 50, "length_before": 3.0}


def test_a_version_restored_by_a_roll_back_stays_because_the_traffic_is_the_cause():
    fleet = Fleet(GuardLimits(min_rounds=50))
    fleet.board.move(1, VersionState.LIVE, "l", "better")
    publish(fleet.board, 2)
    fleet.now += 5.0
    fleet.board.roll_back("replica:other", "silent_death: it saw the shift first")
    serve_interval(fleet, "good", 1, GOOD)
    fleet.turn()
    serve_interval(fleet, "dead", 1, DEAD)
    fleet.turn()
    assert fleet.state.live == 1
    assert [alarm.version for alarm in said_by(fleet.monitor).alarms] == [1]


def go_live(fleet, number):
    fleet.board.register(version(number), "l", "new")
    fleet.now += 1.0
    fleet.board.move(number, VersionState.LIVE, "l", "better")


@pytest.mark.guarantee("shift-is-no-death")
def test_traffic_that_no_draft_knows_costs_one_rollback_and_no_later_version_and_a_dead_one_is_still_found():
    fleet = Fleet(GuardLimits(min_rounds=50))
    fleet.board.move(1, VersionState.LIVE, "l", "better")
    serve_interval(fleet, "known", 1, GOOD)
    fleet.turn()
    for interval in range(3):  # the shift: neither version has anything of it accepted
        serve_interval(fleet, f"new-{interval}", fleet.state.live, DEAD)
        fleet.turn()
    assert (fleet.state.live, fleet.state.rows[1].state) == (0, VersionState.ROLLED_BACK)
    go_live(fleet, 2)
    for number in range(5):  # it has learnt a little of it: 1.04
        serve(fleet.monitor, f"a little-{number}", 2, [1 if number < 2 else DEAD] + [DEAD] * 9)
    fleet.turn()
    assert fleet.state.live == 2
    serve_interval(fleet, "more", 2, GOOD)
    fleet.turn()
    go_live(fleet, 3)
    serve_interval(fleet, "dead", 3, DEAD)
    fleet.turn()
    assert (fleet.state.live, fleet.state.rows[3].state) == (2, VersionState.ROLLED_BACK)


@pytest.mark.guarantee("alarm-degenerate-draft")
@pytest.mark.parametrize(
    ("drafted", "text", "is_out"),
    [
        ((9, 9, 9), 5, True),
        ((9, 8, 7), 5, False),
        ((9, 9, 9), 9, False),
        ((9, 8, 7, *[NO_DRAFT] * 57), 5, False),  # a tree's path has no drafts after its end
    ],
)
def test_a_draft_that_proposes_one_token_whatever_the_text_is_rolled_back(drafted, text, is_out):
    fleet = Fleet(GuardLimits(min_rounds=50))
    fleet.board.move(1, VersionState.LIVE, "l", "better")
    for request in range(5):
        for number in range(10):
            fleet.monitor.add(verify(f"r{request}", 1, 1, "length" if number == 9 else "", drafted, text))
    fleet.turn()
    row = fleet.state.rows[1]
    assert (row.state is VersionState.ROLLED_BACK) == is_out
    assert [alarm.name for alarm in said_by(fleet.monitor).alarms] == [AlarmName.DEGENERATE_DRAFT] * is_out
    assert sentence(row.why).endswith("degenerate_draft; 100% of 150 drafts are one token, 0% of the text is") == is_out


@pytest.mark.guarantee("one-request-decides-nothing")
def test_one_request_alone_raises_no_alarm():
    fleet = Fleet(GuardLimits(min_rounds=50))
    fleet.board.move(1, VersionState.LIVE, "l", "better")
    serve_interval(fleet, "good", 1, GOOD)
    fleet.turn()
    serve(fleet.monitor, "stubborn", 1, [DEAD] * 500)
    fleet.turn()
    assert (fleet.state.live, said_by(fleet.monitor).alarms) == (1, [])


@pytest.mark.guarantee("one-request-decides-nothing")
def test_one_request_that_nothing_can_draft_raises_no_alarm_among_others():
    fleet = Fleet(GuardLimits(min_rounds=50))
    fleet.board.move(1, VersionState.LIVE, "l", "better")
    serve_interval(fleet, "good", 1, GOOD)
    fleet.turn()
    serve(fleet.monitor, "stubborn", 1, [DEAD] * 2000)
    for name in "abc":
        serve(fleet.monitor, name, 1, [3] * 10)
        fleet.turn()
    assert (fleet.state.live, said_by(fleet.monitor).alarms) == (1, [])


def test_an_alarm_that_nobody_can_act_on_is_raised_once():
    fleet = Fleet(GuardLimits(min_rounds=50))
    for interval in range(3):
        for request in range(5):
            for number in range(10):
                finish = "length" if number == 9 else ""
                fleet.monitor.add(verify(f"{interval}-{request}", 0, 1, finish, drafted=(9, 9, 9), text=5))
        fleet.turn()
    assert [alarm.name for alarm in said_by(fleet.monitor).alarms] == [AlarmName.DEGENERATE_DRAFT]


def test_a_dead_canary_is_out_by_requests_that_ran_when_it_came(fleet):
    serve_live(fleet)
    for slot in range(8):
        fleet.monitor.add(verify(f"long-{slot}", 0, GOOD))
    fleet.start_canary()
    for round_ in range(13):
        assert fleet.state.canary == 1, round_
        for slot in range(8):
            fleet.monitor.add(verify(f"long-{slot}", 1, DEAD))
        fleet.turn()
    row = fleet.state.rows[1]
    assert (row.state, row.why.figures["alarm"]) == (VersionState.ROLLED_BACK, "silent_death")


@pytest.mark.guarantee("unreadable-board")
def test_an_unreadable_board_leaves_the_counting_and_everything_else_alone(fleet, monkeypatch, caplog):
    def unreadable():
        raise DecodeError("board event 1-1: nonsense", b"x")

    monkeypatch.setattr(fleet.board, "read", unreadable)
    for name in "abc":
        serve(fleet.monitor, name, 1, [DEAD] * 8)
        fleet.monitor.turn(fleet.now)
    assert len(said_by(fleet.monitor).stretches.ended) == 3
    assert caplog.text.count("is not monitored: board event 1-1: nonsense") == 1


def test_a_draft_that_was_never_good_raises_no_alarm():
    fleet = Fleet(GuardLimits(min_rounds=50))
    for number in range(4):
        serve_interval(fleet, f"cold-{number}", 0, DEAD)
        fleet.turn()
    assert said_by(fleet.monitor).alarms == []
    assert fleet.state.live == 0


def test_requests_that_run_when_the_version_changes_are_left_out(fleet):
    fleet.monitor.add(verify("long", 0, GOOD))
    fleet.monitor.add(verify("long", 1, DEAD))
    fleet.monitor.add(verify("new", 1, GOOD))
    fleet.monitor.add(verify("long", 1, DEAD, "length"))
    fleet.monitor.add(verify("new", 1, DEAD, "length"))
    reported = said_by(fleet.monitor).stretches
    assert (reported.version, [(each.accepted_at, each.accepted, each.rounds) for each in reported.ended]) == (
        1,
        [([], GOOD, 2)],
    )


def alternate(fleet, canary_mean, turns):
    """Turns of ten requests on the one replica; the last of each runs on into the next turn."""
    rng = np.random.default_rng(1000)
    for number in range(20):
        serve(fleet.monitor, f"before-{number}", 0, lengths_of(rng, 1.5))
    fleet.start_canary()
    for turn in range(turns):
        version, mean = (0, 1.5) if turn % 2 else (1, canary_mean)
        for number in range(9):
            serve(fleet.monitor, f"t{turn}-{number}", version, lengths_of(rng, mean))
            fleet.turn()
        fleet.monitor.add(verify(f"t{turn}-long", version, GOOD))
        if fleet.state.canary is None:
            return turn
    return turns


@pytest.mark.parametrize(
    ("mean", "live", "reason"), [(0.0, 0, ReasonCode.CANARY_HARMS), (2.4, 1, ReasonCode.CANARY_GAINS)]
)
def test_on_a_single_replica_turns_of_both_versions_decide(mean, live, reason):
    fleet = Fleet()
    fleet.monitor = fleet.new("rep", alternates=True)
    ended_in = alternate(fleet, mean, 20)
    assert (fleet.state.live, fleet.state.canary) == (live, None)
    assert fleet.state.rows[1].why.code is reason
    assert ended_in < (1 if live == 0 else 20)


def test_the_live_arm_of_a_single_replica_is_what_it_served_before_and_between():
    fleet = Fleet()
    fleet.monitor = fleet.new("rep", alternates=True)
    alternate(fleet, 1.5, 4)
    # 20 requests before, 9 in each of two turns that ended, 24 rounds each, and a first round of the long ones.
    assert fleet.monitor._trial.live.rounds == 24 * (20 + 2 * 9) + 2
    verdict = fleet.monitor._trial._test.verdict()
    assert (verdict.canary.rounds, verdict.live.rounds) == (24 * 18 + 2, 24 * 18 + 2)  # what came before is no arm


def test_a_live_version_is_compared_with_its_own_turns_and_not_with_the_canarys():
    fleet = Fleet(GuardLimits(min_rounds=50))
    fleet.monitor = fleet.new("rep", alternates=True)
    fleet.board.move(1, VersionState.LIVE, "l", "better")
    fleet.board.register(version(2), "l", "new")
    serve_interval(fleet, "low", 1, DEAD)  # the traffic has shifted, and it was left alone
    fleet.turn()
    fleet.board.move(2, VersionState.CANARY, "l", "won", replica="rep")
    serve_interval(fleet, "canary", 2, GOOD)
    fleet.turn()
    serve_interval(fleet, "turn", 1, DEAD)
    fleet.turn()
    assert said_by(fleet.monitor).alarms == []
    assert (fleet.state.live, fleet.state.canary) == (1, 2)


def test_what_a_request_serves_after_its_turn_counts_for_neither_however_many_turns_it_lasts(fleet):
    fleet.monitor = fleet.new("rep", alternates=True)
    fleet.start_canary()
    for draft in (0, 1, 0, 1):
        for _ in range(5):
            fleet.monitor.add(verify("long", draft, GOOD))
        fleet.turn()
    fleet.monitor.add(verify("long", 1, GOOD, "length"))
    verdict = fleet.monitor._trial._test.verdict()
    assert (verdict.canary.rounds, verdict.live.rounds) == (0, 0)
    fleet.monitor.add(verify("long", 1, GOOD))  # the id is free again
    assert fleet.monitor._trial._test.verdict().canary.rounds == 1


@pytest.mark.parametrize(("begin", "ground"), [([1.5], ReasonCode.CANARY_LOSES), ([], ReasonCode.CANARY_HARMS)])
@pytest.mark.parametrize("alternates", [False, True])
def test_a_bad_canary_is_not_promoted_because_the_traffic_before_it_was_hard(alternates, begin, ground):
    fleet = Fleet()
    fleet.monitor = fleet.new("rep", alternates=alternates)
    rng = np.random.default_rng(0)

    def lengths(mean):
        return [accepted for part in [*begin, mean] for accepted in lengths_of(rng, part)]

    before = fleet.monitor if alternates else fleet.other
    for number in range(64):
        serve(before, f"hard-{number}", 0, [DEAD] * 24)
    fleet.start_canary()
    for number in range(60):
        serve(fleet.monitor, f"canary-{number}", 1, lengths(0.5))
        if not alternates:
            serve(fleet.other, f"live-{number}", 0, lengths(1.5))
        elif number % 4 == 3:
            for turn in range(4):
                serve(fleet.monitor, f"live-{number}-{turn}", 0, lengths(1.5))
        fleet.turn()
        assert fleet.state.live == 0
    assert fleet.state.rows[1].state is VersionState.ROLLED_BACK
    assert fleet.state.rows[1].why.code is ground
