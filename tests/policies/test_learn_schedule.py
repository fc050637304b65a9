"""When to learn: until rounds bring nothing more, and again when what is served says so."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from paceline.buffer.board.reason import ReasonCode, because
from paceline.policies.acceptance import Tally
from paceline.policies.learn_schedule import (
    REMEMBERED_REQUESTS,
    USUAL_REQUESTS,
    LearnChoice,
    LearnMode,
    LearnRules,
    LearnSchedule,
)
from river.drift import ADWIN

ROUNDS = 30
LEARN, REST = LearnChoice.LEARN, LearnChoice.REST
RULES = LearnRules()
START_S = 1_700_000_000.0


def tallies(rng: np.random.Generator, level: float, count: int) -> list[Tally]:
    """Requests whose accepted drafts per round scatter around `level` as much as served ones do."""
    means = np.clip(rng.normal(level, 0.6, count), 0.0, 5.0)
    return [Tally(round(mean * ROUNDS), ROUNDS) for mean in means]


def values(served: list[Tally]) -> list[float]:
    return [tally.accepted / tally.rounds for tally in served]


def resting(rng: np.random.Generator, level: float, rules: LearnRules = RULES) -> LearnSchedule:
    """A schedule at rest since START_S, on traffic of this level."""
    schedule = LearnSchedule(rules)
    for _ in range(rules.flat_rounds):
        schedule.observe(tallies(rng, level, 40))
        assert schedule.decide(START_S).choice is LEARN
        schedule.record_learning(START_S, is_better=False, is_warm=True)
    return schedule


def batches(schedule: LearnSchedule, served: list[Tally], size: int = 40) -> list[LearnChoice]:
    """What is decided on `served`, batch by batch, a minute apart and past the cool-down; nothing is learnt."""
    found = []
    for number, at in enumerate(range(0, len(served), size), start=1):
        schedule.observe(served[at : at + size])
        found.append(schedule.decide(START_S + 60.0 * number).choice)
    return found


def test_a_new_watch_learns_at_once() -> None:
    decision = LearnSchedule(LearnRules()).decide(START_S)
    assert (decision.choice, decision.reason) == (
        LEARN,
        because(ReasonCode.FEW_FLAT_ROUNDS, flat_rounds=0, rest_after=6),
    )


@pytest.mark.parametrize(
    ("rounds", "rests_after"),
    [
        ("------", 6),
        ("-----+------", 12),  # a better draft restarts the count
        ("---?---", 7),  # a gate that waits says nothing
        ("??????????", None),
        ("cccccccccc", None),  # a cold draft goes on
        ("-----c-----", None),
        ("-----c------", 12),
        ("+-+-+-+-+-+-", None),
    ],
)
def test_a_rest_begins_after_so_many_learning_rounds_in_a_row_without_a_better_draft(
    rounds: str, rests_after: int | None
) -> None:
    schedule, rng, found = LearnSchedule(LearnRules(cool_down_s=0.0)), np.random.default_rng(0), None
    for number, kind in enumerate(rounds, start=1):
        schedule.observe(tallies(rng, 1.5, 40))
        schedule.record_learning(START_S, is_better={"+": True, "?": None}.get(kind, False), is_warm=kind != "c")
        if found is None and schedule.decide(START_S).choice is REST:
            found = number
    assert found == rests_after


def test_a_rest_needs_requests_to_be_held_against() -> None:
    schedule = LearnSchedule(LearnRules(flat_rounds=2, flat_requests=30, latest_requests=40))
    for count, choice in ((19, LEARN), (20, LEARN), (1, REST)):
        schedule.observe([Tally(45, ROUNDS)] * count)
        schedule.observe([Tally()] * 50)  # without a round a request says nothing
        schedule.record_learning(START_S, is_better=False, is_warm=True)
        assert schedule.decide(START_S).choice is choice


def test_small_learning_rounds_begin_no_rest_before_requests_enough_to_prove_a_gain() -> None:
    schedule = LearnSchedule(LearnRules(flat_rounds=2, flat_requests=100, latest_requests=40))
    for left in (60, 20, 0):
        assert schedule.decide(START_S).choice is LEARN
        schedule.observe([Tally(45, ROUNDS)] * 40)
        schedule.record_learning(START_S, is_better=False, is_warm=True)
        if left:
            assert f"more flat rounds and {left} more requests begin a rest" in schedule.standing(START_S).next
    assert schedule.decide(START_S).choice is REST


def test_known_traffic_is_rested_on_and_hardly_ever_taken_for_another() -> None:
    ended = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        ended += LEARN in batches(resting(rng, 1.2), tallies(rng, 1.2, 800))
    assert ended <= 2


def test_easier_traffic_and_back_does_not_end_a_rest() -> None:
    rng = np.random.default_rng(0)
    served = [tally for level in (1.2, 2.0, 1.2) for tally in tallies(rng, level, 200)]
    assert set(batches(resting(rng, 1.2), served)) == {REST}


def test_a_fall_that_lasts_ends_a_rest_and_says_from_where_to_where() -> None:
    rng = np.random.default_rng(0)
    rules = LearnRules(unexplored_share=0.99)  # the fall alone
    schedule = resting(rng, 1.5, rules)
    assert batches(schedule, tallies(rng, 1.5, 80)) == [REST, REST]
    schedule.observe(tallies(rng, 0.6, 80))
    decision = schedule.decide(START_S + 600.0)
    assert decision.choice is LEARN
    assert decision.reason.code is ReasonCode.ACCEPTED_FELL
    assert decision.reason.figures["usual"] == pytest.approx(1.5, abs=0.1)
    assert decision.reason.figures["level"] == pytest.approx(0.6, abs=0.15)


def test_many_small_falls_add_up_to_one() -> None:
    rng, rules = np.random.default_rng(1), LearnRules(unexplored_share=0.99)
    schedule = resting(rng, 2.0, rules)
    levels = [2.0 * 0.96**i for i in range(12)]
    found = [LEARN in batches(schedule, tallies(rng, level, 200)) for level in levels]
    begun = found.index(True)
    assert all(low > 0.9 * high for high, low in pairwise(levels))  # none alone would end a rest
    assert levels[begun] < 0.9 * 2.0
    assert not any(found[:3])


def test_a_fall_is_what_adwin_kept_after_its_cut_against_the_mean_before_the_rest() -> None:
    rng, rules = np.random.default_rng(3), LearnRules(unexplored_share=0.99)
    before, since = tallies(rng, 1.5, 240), tallies(rng, 0.5, 90)
    schedule = LearnSchedule(rules)
    schedule.observe(before)
    for _ in range(rules.flat_rounds):
        schedule.record_learning(START_S, is_better=False, is_warm=True)
    usual, detector, expected = values(before)[-USUAL_REQUESTS:], ADWIN(delta=rules.delta, clock=1), []
    for value in usual:
        detector.update(value)
    has_cut = False
    for value in values(since):
        detector.update(value)
        has_cut |= detector.drift_detected
        falls = has_cut and detector.width >= 20 and detector.estimation < 0.9 * np.mean(usual)
        expected.append(LEARN if falls else REST)
    found = []
    for tally in since:
        schedule.observe([tally])
        found.append(schedule.decide(START_S + 60.0).choice)
        if found[-1] is LEARN:
            break
    assert found == expected[: len(found)]
    assert found[-1] is LEARN
    assert 20 <= len(found) < 60


@pytest.mark.parametrize(("low", "choice"), [(11, REST), (12, LEARN)])
def test_a_share_of_low_requests_ends_a_rest(low: int, choice: LearnChoice) -> None:
    # 200 requests of 100 to 299 hundredths: a tenth of them are below 1.20.
    schedule = LearnSchedule(LearnRules(flat_rounds=1, fall_share=0.99, cool_down_s=0.0))
    schedule.observe([Tally(accepted, 100) for accepted in range(100, 300)])
    schedule.record_learning(START_S, is_better=False, is_warm=True)
    schedule.observe([Tally(119, 100)] * 28)  # too old to count, and too few by themselves
    assert schedule.decide(START_S).choice is REST
    schedule.observe([Tally(120, 100)] * (40 - low) + [Tally(119, 100)] * low)
    decision = schedule.decide(START_S)
    assert decision.choice is choice
    assert decision.has_drifted is (choice is LEARN)
    assert [decision.reason.figures[name] for name in ("low", "latest", "one_in")] == [low, 40, 10]


def test_a_rest_that_ended_needs_as_many_flat_rounds_again() -> None:
    rng, rules = np.random.default_rng(0), LearnRules(flat_rounds=3, flat_requests=120)
    schedule = resting(rng, 1.5, rules)
    assert LEARN in batches(schedule, tallies(rng, 0.4, 80))
    found = []
    for _ in range(4):
        schedule.observe(tallies(rng, 0.4, 40))
        found.append(schedule.decide(START_S + 900.0).choice)
        schedule.record_learning(START_S + 900.0, is_better=False, is_warm=True)
    assert found == [LEARN, LEARN, LEARN, REST]
    # The level that stayed lost is the usual one now.
    assert set(batches(schedule, tallies(rng, 0.4, 200))) == {REST}


def test_a_rest_lasts_as_long_as_the_cool_down_whatever_is_served() -> None:
    rng, rules = np.random.default_rng(0), LearnRules(cool_down_s=60.0)
    schedule = resting(rng, 1.5, rules)
    schedule.observe(tallies(rng, 0.3, 120))
    early = schedule.decide(START_S + 59.0)
    assert early.choice is REST
    assert early.reason == because(ReasonCode.JUST_AT_REST, rested_s=59.0, cool_down_s=60.0)
    assert schedule.decide(START_S + 60.0).choice is LEARN


@pytest.mark.parametrize(("jumped_s", "waits_s"), [(-1e9, 60.0), (-30.0, 60.0), (+1e9, 0.0)])
def test_a_clock_that_jumps_makes_no_rest_longer_than_another_cool_down(jumped_s: float, waits_s: float) -> None:
    rng, rules = np.random.default_rng(0), LearnRules(cool_down_s=60.0)
    schedule = resting(rng, 1.5, rules)
    schedule.observe(tallies(rng, 0.3, 120))
    later_s = START_S + jumped_s
    if waits_s:
        assert schedule.decide(later_s).choice is REST
        assert schedule.decide(later_s + waits_s - 1.0).choice is REST
    assert schedule.decide(later_s + waits_s).choice is LEARN


def test_always_always_learns_and_never_never_does() -> None:
    rng = np.random.default_rng(0)
    for mode, choice in ((LearnMode.ALWAYS, LEARN), (LearnMode.NEVER, REST)):
        schedule = LearnSchedule(LearnRules(mode=mode))
        for level in (1.5, 1.5, 0.2, 1.5):
            schedule.observe(tallies(rng, level, 200))
            decision = schedule.decide(START_S)
            assert (decision.choice, decision.reason) == (choice, because(ReasonCode.LEARNING_SET, mode=mode.value))
            schedule.record_learning(START_S, is_better=False, is_warm=True)


def test_a_state_of_nothing_is_that_of_a_new_schedule() -> None:
    schedule = LearnSchedule(LearnRules())
    schedule.restore({})
    assert (
        schedule.state()
        == LearnSchedule(LearnRules()).state()
        == {
            "flat_rounds": 0,
            "before": None,
            "latest": [],
            "rest": None,
        }
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"fall_share": 0.0},
        {"low_share": 0.3, "unexplored_share": 0.3},
        {"cool_down_s": -1.0},
        {"sustained_requests": 0},
        {"flat_rounds": 0},
        {"flat_requests": 0},
        {"flat_requests": 1001},
    ],
)
def test_rules_out_of_range_are_a_mistake(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="got"):
        LearnRules(**wrong)


def test_a_better_draft_that_was_rolled_back_was_no_gain() -> None:
    schedule = LearnSchedule(LearnRules(flat_rounds=4, flat_requests=10, latest_requests=10))
    for is_better in (False, False, True):
        schedule.record_learning(START_S, is_better=is_better, is_warm=True)
    schedule.record_rollback(START_S)
    schedule.record_rollback(START_S)  # noted at every learning round; it counts once
    assert schedule.decide(START_S).reason == because(ReasonCode.FEW_FLAT_ROUNDS, flat_rounds=3, rest_after=4)
    served = tallies(np.random.default_rng(0), 1.5, 10)
    schedule.observe(served[:6])
    schedule.record_learning(START_S, is_better=True, is_warm=True)
    schedule.observe(served[6:])
    schedule.record_rollback(START_S)
    assert schedule.decide(START_S).choice is REST
    assert schedule.state()["rest"]["usual"] == values(served)


def test_only_the_last_better_draft_can_be_taken_back() -> None:
    schedule = LearnSchedule(LearnRules())
    for is_better, is_warm in ((False, True), (True, True), (False, True)):
        schedule.record_learning(START_S, is_better=is_better, is_warm=is_warm)
    schedule.record_rollback(START_S)
    assert schedule.decide(START_S).reason.figures["flat_rounds"] == 1
    schedule.record_learning(START_S, is_better=True, is_warm=False)
    schedule.record_rollback(START_S)  # while the draft is cold nothing counts towards a rest
    assert schedule.decide(START_S).reason.figures["flat_rounds"] == 0


class WatchLife(RuleBasedStateMachine):
    """A schedule that is restored from JSON now and then, beside the whole history of what it observed."""

    numbers = LearnRules(flat_rounds=3, flat_requests=8, cool_down_s=60.0, latest_requests=10, sustained_requests=5)

    @initialize()
    def begin(self) -> None:
        self.schedule, self.now_s = LearnSchedule(self.numbers), START_S
        # Newest last: since the last better draft or end of a rest, what was observed and how its rounds went.
        self.history: list[float | str] = []
        self.undo: list | None = None  # the history, were the last better draft none
        self.rest: dict | None = None  # what came before it, what since, and every moment it was looked at

    @rule(level=st.sampled_from([0.2, 1.0, 1.5, 2.0]), count=st.integers(0, 60), seed=st.integers(0, 99))
    def serve(self, level: float, count: int, seed: int) -> None:
        served = tallies(np.random.default_rng(seed), level, count)
        self.schedule.observe([*served, Tally()])
        (self.rest["since"] if self.rest else self.history).extend(values(served))

    @rule()
    def die(self) -> None:
        saved = json.loads(json.dumps(self.schedule.state()))
        self.schedule = LearnSchedule(self.numbers)
        self.schedule.restore(saved)

    @rule(passed_s=st.sampled_from([61.0, 59.0, 1.0, -45.0, -1e6]), kind=st.sampled_from("------+?c"))
    def learn_round(self, passed_s: float, kind: str) -> None:
        self.now_s += passed_s
        decision = self.schedule.decide(self.now_s)
        assert decision.choice is self.expected()
        if decision.choice is REST:
            return
        if self.rest:
            self.rest, self.history = None, []
        self.schedule.record_learning(
            self.now_s, is_better={"+": True, "?": None}.get(kind, False), is_warm=kind != "c"
        )
        self.undo = [*self.history, "-"] if kind == "+" else None
        self.history.append(kind)
        if kind == "+":
            self.history = []
        self.rest_if_done()

    def rest_if_done(self) -> None:
        served = [entry for entry in self.history if isinstance(entry, float)]
        judged = "".join(entry for entry in self.history if entry in ("-", "c"))
        if judged.endswith("---") and len(served) >= 10:
            self.rest = {"usual": served[-USUAL_REQUESTS:], "since": [], "moments": [self.now_s]}

    def expected(self) -> LearnChoice:
        if self.rest is None:
            return LEARN
        self.rest["moments"].append(self.now_s)
        # The rest is no longer than from its earliest moment: a clock set back restarts it.
        if self.now_s - min(self.rest["moments"]) < 60.0:
            return REST
        usual, since = self.rest["usual"], self.rest["since"][-REMEMBERED_REQUESTS:]
        detector, has_cut = ADWIN(delta=self.numbers.delta, clock=1), False
        for number, value in enumerate(usual + since):
            detector.update(value)
            has_cut |= detector.drift_detected and number >= len(usual)
        if has_cut and detector.width >= 5 and detector.estimation < 0.9 * (sum(usual) / len(usual)):
            return LEARN
        latest, edge = since[-10:], max(v for v in usual if sum(u < v for u in usual) <= 0.1 * len(usual))
        return LEARN if len(latest) == 10 and sum(v < edge for v in latest) >= 3 else REST

    @rule()
    def take_back(self) -> None:
        self.schedule.record_rollback(self.now_s)
        if self.undo is not None:
            self.history, self.undo = [*self.undo, *self.history], None
            self.rest_if_done()

    @rule(level=st.sampled_from([1.0, 1.5]), seed=st.integers(0, 99))
    def learn_until_flat(self, level: float, seed: int) -> None:
        self.serve(level, 40, seed)
        for _ in range(3):
            self.learn_round(61.0, "-")

    @invariant()
    def says_only_json(self) -> None:
        assert json.loads(json.dumps(self.schedule.state())) == self.schedule.state()


TestWatchLife = WatchLife.TestCase
TestWatchLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_standing_says_what_begins_a_rest_and_what_ends_it() -> None:
    rng = np.random.default_rng(5)
    schedule = LearnSchedule(RULES)
    schedule.observe(tallies(rng, 2.0, 30))
    schedule.record_learning(START_S, is_better=False, is_warm=True)
    found = schedule.standing(START_S)
    assert (found.flat_rounds, found.rest_after_flat_rounds) == (1, RULES.flat_rounds)
    assert found.next == f"{RULES.flat_rounds - 1} more flat rounds and 170 more requests begin a rest"
    at_rest = resting(rng, 2.0)
    usual = at_rest.state()["rest"]["usual"]
    found = at_rest.standing(START_S + 90.0)
    assert found.rested_s == 90.0
    low = sorted(usual)[int(RULES.low_share * len(usual))]
    assert found.next == (
        f"a rest ends after 60 s, once accepted per round falls under {0.9 * sum(usual) / len(usual):.3f}, or "
        f"30% of 40 requests are under {low:.3f}"
    )
    assert LearnSchedule(LearnRules(mode=LearnMode.NEVER)).standing(START_S).next == "learning is set to never"
