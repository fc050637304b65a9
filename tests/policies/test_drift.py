"""When to learn: on a fall that lasts or on traffic not seen yet, with room between beginning and stopping."""

import numpy as np
import pytest
from paceline.policies.acceptance import Tally
from paceline.policies.drift import LearnChoice, LearnMode, LearnRules, LearnWatch, LevelWatch
from river.drift import ADWIN

ROUNDS = 30


def tallies(rng: np.random.Generator, level: float, count: int) -> list[Tally]:
    """Requests whose accepted drafts per round scatter around `level` as much as served ones do."""
    means = np.clip(rng.normal(level, 0.6, count), 0.0, 5.0)
    return [Tally(round(mean * ROUNDS), ROUNDS) for mean in means]


def fed(rules: LearnRules, *levels: tuple[float, int], seed: int = 0) -> LearnWatch:
    watch, rng = LearnWatch(rules), np.random.default_rng(seed)
    for level, count in levels:
        for tally in tallies(rng, level, count):
            watch.observe(tally)
    return watch


def test_a_fall_that_lasts_begins_learning_and_says_from_where_to_where() -> None:
    watch = fed(LearnRules(), (1.5, 300), (0.6, 120))
    decision = watch.decide(0.0, fresh=0, known=400)
    assert decision.choice is LearnChoice.LEARN
    before, level = (float(word.rstrip(",")) for word in np.array(decision.reason.split())[[5, 7]])
    assert before == pytest.approx(1.5, abs=0.1)
    assert level == pytest.approx(0.6, abs=0.15)


def test_a_steady_level_and_a_rise_let_the_learner_rest() -> None:
    for levels in [((1.5, 600),), ((0.6, 300), (1.5, 300))]:
        decision = fed(LearnRules(), *levels).decide(0.0, fresh=0, known=400)
        assert decision.choice is LearnChoice.REST
        assert decision.reason.startswith("0 of 400 traces (0%) are not learnt from, the level holds at 1.")


def test_on_steady_traffic_hardly_any_watch_ever_learns() -> None:
    false_alarms = 0
    for seed in range(20):
        watch, rng = LearnWatch(LearnRules()), np.random.default_rng(seed)
        choices = []
        for tally in tallies(rng, 1.2, 400):
            watch.observe(tally)
            choices.append(watch.decide(0.0, 0, 400).choice)
        false_alarms += LearnChoice.LEARN in choices
    assert false_alarms <= 1


def test_cuts_are_those_of_adwin_and_levels_the_means_on_both_sides() -> None:
    rng, rules = np.random.default_rng(3), LearnRules()
    values = [t.accepted / t.rounds for t in [*tallies(rng, 2.0, 200), *tallies(rng, 0.5, 80)]]
    watch, detector, before, cut_at = LevelWatch(rules), ADWIN(delta=rules.delta, clock=1), 0.0, 0
    for i, value in enumerate(values):
        width = 0 if detector.drift_detected else int(detector.width)  # river begins anew behind a cut
        watch.observe(Tally(round(value * ROUNDS), ROUNDS))
        detector.update(value)
        if detector.drift_detected:
            kept, cut_at = int(detector.width), i
            before = max(before, float(np.mean(values[i - width : i + 1 - kept])))
    assert 200 < cut_at < 250
    assert watch.before == pytest.approx(before)
    assert watch.level == pytest.approx(np.mean(values[cut_at + 1 :]))
    assert watch.has_fallen


def test_a_level_regained_stops_learning_and_one_that_stays_lost_becomes_normal() -> None:
    back = fed(LearnRules(), (1.5, 300), (0.6, 80), (1.6, 200))
    assert back.decide(0.0, 0, 400).choice is LearnChoice.REST
    rules = LearnRules(give_up_rounds=3, cool_down_s=0.0)
    lost = fed(rules, (1.5, 300), (0.6, 120))
    for round_number in range(3):
        assert lost.decide(float(round_number), 0, 400).choice is LearnChoice.LEARN
        lost.learnt(float(round_number))
    assert lost.decide(9.0, 0, 400).choice is LearnChoice.REST


def test_many_small_falls_add_up_to_one() -> None:
    steps = [(2.0 * 0.93**i, 400) for i in range(6)]
    assert fed(LearnRules(), *steps, (2.0 * 0.93**5, 100)).decide(0.0, 0, 400).choice is LearnChoice.LEARN


def test_a_fall_counts_only_when_it_has_lasted() -> None:
    rules = LearnRules(sustained_requests=50)
    watch, rng = LevelWatch(rules), np.random.default_rng(0)
    for tally in [*tallies(rng, 1.5, 300), *tallies(rng, 0.3, 60)]:
        watch.observe(tally)
    assert watch.before is not None
    assert not watch.has_fallen
    for tally in tallies(rng, 0.3, 50):
        watch.observe(tally)
    assert watch.has_fallen


def test_fresh_traffic_begins_learning_at_one_share_and_stops_at_a_lower_one() -> None:
    watch = LearnWatch(LearnRules(fresh_begin=0.5, fresh_stop=0.2, min_fresh=10))
    shares = [(9, 0), (49, 51), (50, 50), (30, 70), (20, 80), (19, 81), (49, 51)]
    found = [watch.decide(0.0, fresh, known).choice for fresh, known in shares]
    rest, learn = LearnChoice.REST, LearnChoice.LEARN
    assert found == [rest, rest, learn, learn, learn, rest, rest]


def test_the_cool_down_holds_in_any_mode() -> None:
    for mode in (LearnMode.ALWAYS, LearnMode.DRIFT):
        watch = LearnWatch(LearnRules(mode=mode, cool_down_s=60.0, period_s=0.0))
        watch.learnt(100.0)
        early, late = watch.decide(159.0, 400, 0), watch.decide(160.0, 400, 0)
        assert (early.choice, late.choice) == (LearnChoice.REST, LearnChoice.LEARN)
        assert early.reason == "59 s since the last round, 60 s asked"


def test_the_timer_learns_by_the_clock_and_never_never_learns() -> None:
    always = LearnWatch(LearnRules(mode=LearnMode.ALWAYS, period_s=600.0))
    assert always.decide(0.0, 0, 0).choice is LearnChoice.LEARN
    always.learnt(0.0)
    assert always.decide(599.0, 500, 0).choice is LearnChoice.REST
    assert always.decide(600.0, 0, 500).choice is LearnChoice.LEARN
    never = fed(LearnRules(mode=LearnMode.NEVER), (1.5, 300), (0.6, 120))
    assert never.decide(1e9, 500, 0).choice is LearnChoice.REST


def test_requests_without_rounds_say_nothing() -> None:
    watch = LevelWatch(LearnRules())
    watch.observe(Tally())
    assert (watch.level, watch.before) == (0.0, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"recovered_share": 0.2, "fall_share": 0.1},
        {"fresh_stop": 0.6, "fresh_begin": 0.5},
        {"cool_down_s": -1.0},
        {"sustained_requests": 0},
    ],
)
def test_rules_out_of_range_are_a_mistake(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="got"):
        LearnRules(**wrong)
