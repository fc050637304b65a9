"""Goodput pacing finds the best length, spends little on finding it, and lets drafts be where they do not pay."""

import numpy as np
import pytest
from paceline.policies.pacing.goodput import (
    DRAFT_SHARE,
    FIRST_MEASURES,
    GoodputPacing,
    Trials,
    with_shorter_cheaper,
)
from paceline.policies.pacing.policy import Pacing
from paceline.policies.pacing.step_costs import CostTable, StepCosts

MAX_STEPS = 6
LENGTHS = range(MAX_STEPS + 1)


def cost_ms(batch: int, k: int, verify_ms: float = 0.2) -> float:
    return 8.0 + 0.8 * k + verify_ms * batch * (k + 1)


def expected_goodput(chances: list[float], batch: int, verify_ms: float) -> list[float]:
    """Committed tokens per millisecond with 0, 1, .. drafts, by summing over every way a round can end."""
    found = []
    for k in range(MAX_STEPS + 1):
        ends = [(j + 1) * np.prod(chances[:j]) * (1.0 - chances[j]) for j in range(k)]
        found.append(batch * (sum(ends) + (k + 1) * np.prod(chances[:k])) / cost_ms(batch, k, verify_ms))
    return [float(g) for g in found]


def serve(
    policy: Pacing, chances: list[float], batch: int, count: int, rng: np.random.Generator, verify_ms: float = 0.2
) -> list[int]:
    """Lengths chosen over `count` decode steps; costs have 5 % noise."""
    chosen = []
    for _ in range(count):
        k = policy.steps(batch)
        is_accepted = rng.random((batch, k)) < np.array(chances[:k])
        accepted = np.cumprod(is_accepted, axis=1).sum(axis=1).tolist() if k else [0] * batch
        policy.observe(batch, k, accepted, cost_ms(batch, k, verify_ms) * float(np.exp(rng.normal(0.0, 0.05))))
        chosen.append(k)
    return chosen


def compiled() -> GoodputPacing:
    """One that has met every length at batch 1, so that the next step of each is timed."""
    policy = GoodputPacing(LENGTHS)
    policy._met |= {(1, length) for length in LENGTHS}
    return policy


@pytest.mark.parametrize(
    ("chances", "batch", "verify_ms"),
    [
        ([0.8, 0.8, 0.8, 0.8, 0.8, 0.8], 1, 0.2),
        ([0.7, 0.5, 0.3, 0.2, 0.1, 0.1], 4, 0.2),
        ([0.5, 0.8, 0.8, 0.3, 0.3, 0.3], 2, 0.1),
        ([0.3, 0.2, 0.2, 0.2, 0.2, 0.2], 8, 1.5),
        ([0.02, 0.02, 0.02, 0.02, 0.02, 0.02], 1, 0.2),
    ],
)
def test_most_of_the_time_goes_to_a_length_nearly_as_good_as_the_best(
    chances: list[float], batch: int, verify_ms: float
) -> None:
    goodput = expected_goodput(chances, batch, verify_ms)
    chosen = serve(GoodputPacing(LENGTHS), chances, batch, 1500, np.random.default_rng(0), verify_ms)
    tokens = sum(goodput[k] * cost_ms(batch, k, verify_ms) for k in chosen)
    achieved = tokens / sum(cost_ms(batch, k, verify_ms) for k in chosen)
    assert achieved >= 0.97 * max(goodput)


def test_a_dead_draft_is_switched_off_and_costs_its_share_of_trials_at_most() -> None:
    policy = GoodputPacing(LENGTHS, explore_share=0.03, free_trials=4)
    chosen = serve(policy, [0.0] * MAX_STEPS, 4, 2000, np.random.default_rng(1))
    plain, spent = cost_ms(4, 0), sum(cost_ms(4, k) for k in chosen)
    assert chosen[-300:].count(0) >= 285
    trials = [cost_ms(4, k) for k in chosen if k]
    # Noise may let a length look best for a few steps before acceptance is known.
    assert sum(trials) <= 0.03 * spent + 8 * cost_ms(4, MAX_STEPS)
    assert plain * len(chosen) / spent >= 0.96


def caught_up(policy: Pacing, chance: float, batch: int, count: int, rng: np.random.Generator) -> tuple[float, int]:
    """Goodput of `count` steps over that of plain decoding, and how often the draft read what it had missed.

    It reads before it drafts again, which takes as long as a plain step and leaves the step without a cost.
    """
    spent_ms = tokens = passes = 0.0
    missed = 0
    for _ in range(count):
        k = policy.steps(batch)
        is_accepted = rng.random((batch, k)) < chance
        accepted = np.cumprod(is_accepted, axis=1).sum(axis=1).tolist() if k else [0] * batch
        took_ms, reads = cost_ms(batch, k) * float(np.exp(rng.normal(0.0, 0.05))), k > 0 and missed > 0
        policy.observe(batch, k, accepted, None if reads else took_ms)
        passes += reads
        spent_ms += took_ms + reads * cost_ms(batch, 0)
        tokens += sum(accepted) + batch
        missed = 0 if k else missed + 1
    return tokens / spent_ms * cost_ms(batch, 0) / batch, int(passes)


@pytest.mark.parametrize("batch", [1, 4, 8])
@pytest.mark.parametrize("seed", range(4))
def test_trials_that_no_cost_is_known_of_are_counted(batch: int, seed: int) -> None:
    policy, rng = GoodputPacing(LENGTHS), np.random.default_rng(seed)
    goodput, passes = caught_up(policy, 0.02, batch, 3000, rng)
    assert goodput >= 0.985
    assert passes <= 20


@pytest.mark.parametrize("batch", [1, 8])
def test_the_first_step_of_a_length_which_compiles_kernels_is_not_taken_for_its_cost(batch: int) -> None:
    policy, rng = GoodputPacing(LENGTHS), np.random.default_rng(0)
    met, chosen = set[int](), []
    for _ in range(200):
        k = policy.steps(batch)
        is_accepted = rng.random((batch, k)) < 0.9
        accepted = np.cumprod(is_accepted, axis=1).sum(axis=1).tolist() if k else [0] * batch
        policy.observe(batch, k, accepted, cost_ms(batch, k, 0.1) + (0.0 if k in met else 200.0))
        met.add(k)
        chosen.append(k)
    goodput = expected_goodput([0.9] * MAX_STEPS, batch, 0.1)
    assert np.mean([goodput[k] for k in chosen[30:]]) >= 0.97 * max(goodput)  # a recheck comes after 400 steps


def test_a_trial_without_a_cost_goes_on_for_one_step() -> None:
    policy = compiled()
    for _ in range(FIRST_MEASURES):
        policy.observe(1, 0, [0], 8.0)
    tried = policy.steps(1)
    policy.observe(1, tried, [0], None)
    assert policy._trials[1].trials_ms == 16.0  # as long as twice the only length that is known
    for _ in range(30):
        policy.observe(4, 0, [0] * 4, 8.0)  # another batch size meanwhile, and no hope left
    assert (tried > 0, policy.steps(1)) == (True, tried)
    policy.observe(1, tried, [0], None)
    assert policy._trials[1].untimed is None  # however often a prefill comes between


def test_trials_in_vain_take_a_falling_share_and_another_draft_starts_anew() -> None:
    trials = Trials(time_ms=1000.0, trials_ms=30.0, count=9)
    assert trials.may_try(0.03, free=8)
    trials.in_vain = 8
    assert not trials.may_try(0.03, free=8)
    assert trials.may_try(0.03, free=10)
    trials.trials_ms = 15.0
    assert trials.may_try(0.03, free=8)
    trials.in_vain, trials.trials_ms = 1000, 4.9
    assert trials.may_try(0.03, free=8)
    trials.trials_ms = 5.1
    assert not trials.may_try(0.03, free=8)
    policy, rng = GoodputPacing(LENGTHS), np.random.default_rng(0)
    caught_up(policy, 0.02, 1, 500, rng)
    assert policy._trials[1].in_vain > 0
    policy.draft_changed()
    assert policy._trials == {}
    assert policy.steps(1) > 0


def test_a_trial_that_finds_a_better_length_is_not_in_vain() -> None:
    policy, rng = compiled(), np.random.default_rng(0)
    for _ in range(FIRST_MEASURES):
        policy.observe(1, 0, [0], 8.0)
    tried = policy.steps(1)
    policy.observe(1, tried, [0], 20.0)
    assert policy._trials[1].in_vain == 1
    found = policy.steps(1)
    policy.observe(1, found, [found], 8.5)
    assert (found > 0, policy._best(1), policy._trials[1].in_vain) == (True, found, 0)
    goodput, _ = caught_up(policy, 0.9, 1, 400, rng)
    assert (goodput > 2.0, policy._best(1) > 3) == (True, True)


def test_plain_decoding_is_measured_first_in_every_bucket() -> None:
    policy = GoodputPacing(LENGTHS)
    serve(policy, [0.9] * MAX_STEPS, 1, 200, np.random.default_rng(2))
    assert policy.steps(1) > 0
    assert policy.steps(16) == 0


def test_one_hiccup_at_the_first_plain_step_does_not_make_a_dead_draft_look_good() -> None:
    policy, chosen = GoodputPacing(LENGTHS), []
    for turn in range(60):
        k = policy.steps(4)
        policy.observe(4, k, [0] * 4, cost_ms(4, k) * (10.0 if turn == 0 else 1.0))
        chosen.append(k)
    assert chosen[:3] == [0, 0, 0]
    assert chosen.count(0) >= 50


def test_slowness_over_all_first_plain_steps_does_not_make_a_dead_draft_look_good() -> None:
    policy, chosen = GoodputPacing(LENGTHS), []
    for turn in range(120):
        k = policy.steps(4)
        policy.observe(4, k, [0] * 4, cost_ms(4, k) * (2.0 if turn < FIRST_MEASURES else 1.0))
        chosen.append(k)
    # Plain decoding is measured again after 3, 4 and so on steps; four right measurements outvote the three slow ones.
    assert chosen.count(0) >= 120 - (3 + 4 + 5 + 6 + 4)
    assert chosen[-60:] == [0] * 60


@pytest.mark.parametrize("slow_steps", [12, 50])
@pytest.mark.parametrize("phase_steps", [190, 400])
@pytest.mark.parametrize("seed", range(4))
def test_a_machine_that_is_slower_at_times_does_not_make_a_dead_draft_look_good(
    phase_steps: int, slow_steps: int, seed: int
) -> None:
    policy, rng, slowness, spent_ms = GoodputPacing(LENGTHS), np.random.default_rng(seed), 1.0, 0.0
    for turn in range(2300):
        if turn // phase_steps % 2 == 0:
            slowness = 1.0
        elif turn % slow_steps == 0:
            slowness = float(rng.uniform(0.95, 2.5))
        k = policy.steps(4)
        policy.observe(4, k, [0] * 4, cost_ms(4, k) * slowness * float(np.exp(rng.normal(0.0, 0.06))))
        spent_ms += cost_ms(4, k)
    assert cost_ms(4, 0) * 2300 / spent_ms >= 0.985


def test_no_length_costs_more_than_a_longer_one_leaves_for_it() -> None:
    costs = {0: 10.0, 1: 8.0, 3: 9.0, 5: 9.5, 6: 8.9}
    share = 1.0 + DRAFT_SHARE
    found = with_shorter_cheaper(costs)
    assert found == pytest.approx({0: 8.0 / share, 1: 8.0, 3: 8.9 / share**3, 5: 8.9 / share, 6: 8.9})
    assert list(found) == list(costs)
    assert with_shorter_cheaper({2: 7.0}) == {2: 7.0}
    assert with_shorter_cheaper({}) == {}


def test_lengths_that_were_measured_at_different_times_are_compared_at_one_pace() -> None:
    costs, slowness = StepCosts((0, 2, 4)), 1.0
    for turn in range(120):
        slowness = 1.0 + turn // 30
        steps = (0, 2, 0, 4)[turn // 30] if turn % 30 > 5 else 0
        costs.observe(4, steps, (10.0 + steps) * slowness)
    assert costs.measured(4) == pytest.approx({0: 40.0, 2: 48.0, 4: 56.0})


def test_plain_decoding_that_costs_as_much_as_drafting_is_measured_ever_more_rarely() -> None:
    policy, chosen = GoodputPacing(LENGTHS), []
    for _ in range(1000):
        chosen.append(policy.steps(4))
        policy.observe(4, chosen[-1], [chosen[-1]] * 4, 10.0)
    first, second = chosen[:500].count(0), chosen[500:].count(0)
    assert 0 < second < first < 50


def test_it_follows_a_draft_that_gets_better_and_one_that_gets_worse() -> None:
    policy, rng = GoodputPacing(LENGTHS), np.random.default_rng(3)
    serve(policy, [0.02] * MAX_STEPS, 2, 400, rng)
    policy.draft_changed()
    better = serve(policy, [0.85] * MAX_STEPS, 2, 300, rng)
    assert np.mean(better[-200:]) >= 3
    worse = serve(policy, [0.05] * MAX_STEPS, 2, 600, rng)
    assert np.mean(worse[-100:]) <= 0.5


def test_a_draft_that_was_off_is_tried_again_without_being_told() -> None:
    policy, rng = GoodputPacing(LENGTHS), np.random.default_rng(6)
    serve(policy, [0.02] * MAX_STEPS, 2, 500, rng)
    assert np.mean(serve(policy, [0.85] * MAX_STEPS, 2, 1500, rng)[-300:]) >= 3


def test_a_machine_that_becomes_slower_at_drafting_is_noticed() -> None:
    policy, rng = GoodputPacing(LENGTHS), np.random.default_rng(4)
    assert np.mean(serve(policy, [0.7] * MAX_STEPS, 4, 600, rng, verify_ms=0.1)[-200:]) >= 2
    assert np.mean(serve(policy, [0.7] * MAX_STEPS, 4, 1500, rng, verify_ms=9.0)[-200:]) <= 0.5


def test_the_same_calls_give_the_same_choices_and_asking_changes_nothing() -> None:
    runs = []
    for asked in (1, 3):
        policy, rng, chosen = GoodputPacing(LENGTHS), np.random.default_rng(5), []
        for _ in range(200):
            k = [policy.steps(2) for _ in range(asked)].pop()
            policy.observe(2, k, rng.integers(0, k + 1, 2).tolist(), cost_ms(2, k))
            chosen.append(k)
        runs.append(chosen)
    assert runs[0] == runs[1]


def test_lengths_that_are_not_offered_are_never_chosen() -> None:
    policy, rng = GoodputPacing((1, 3, 5)), np.random.default_rng(7)
    chosen = serve(policy, [0.8] * MAX_STEPS, 1, 400, rng)
    assert set(chosen) <= {1, 3, 5}
    assert chosen[0] == 1  # the shortest is measured first, where plain decoding is not offered
    assert np.mean(chosen[-200:]) >= 3


def test_a_step_without_a_cost_still_counts_what_was_accepted() -> None:
    observed, untouched = compiled(), compiled()
    for policy in (observed, untouched):
        for _ in range(FIRST_MEASURES):
            policy.observe(1, 0, [0], 8.0)
        policy.observe(1, 1, [1], 9.0)
    for _ in range(50):
        observed.observe(1, 1, [0], None)
    assert untouched.steps(1) != 0
    assert observed._best(1) == 0
    assert observed._costs.measured(1) == untouched._costs.measured(1)


def test_with_a_table_no_length_has_to_be_tried_for_its_cost() -> None:
    table = CostTable({b: {k: cost_ms(b, k) for k in LENGTHS} for b in (1, 8)})
    policy, rng = GoodputPacing(LENGTHS, table), np.random.default_rng(8)
    assert policy.steps(4) > 0
    chosen = serve(policy, [0.7, 0.5, 0.3, 0.2, 0.1, 0.1], 4, 380, rng)
    goodput = expected_goodput([0.7, 0.5, 0.3, 0.2, 0.1, 0.1], 4, 0.2)
    assert max(chosen[20:]) <= 4
    assert np.mean([goodput[k] for k in chosen[20:]]) >= 0.97 * max(goodput)


def test_a_table_of_a_faster_machine_is_scaled_to_this_one() -> None:
    table = CostTable({b: {k: 0.2 * cost_ms(b, k) for k in LENGTHS} for b in (1, 8)})
    policy, rng = GoodputPacing(LENGTHS, table), np.random.default_rng(9)
    assert np.mean(serve(policy, [0.02] * MAX_STEPS, 2, 400, rng)[-100:]) <= 0.5
    policy.draft_changed()
    assert np.mean(serve(policy, [0.85] * MAX_STEPS, 2, 400, rng)[-200:]) >= 3
