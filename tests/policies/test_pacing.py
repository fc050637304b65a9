"""What pacing counts: acceptance by position, and costs by bucket."""

import math

import numpy as np
import pytest
from paceline.policies.pacing.position_acceptance import PositionAcceptance, wilson_upper
from paceline.policies.pacing.step_costs import CostTable, StepCosts, bucket_of, interpolated


def rounds_of(rng: np.random.Generator, chances: list[float], steps: int, count: int) -> list[int]:
    """Accepted drafts when draft j is accepted with chances[j]."""
    found = []
    for _ in range(count):
        accepted = 0
        while accepted < steps and rng.random() < chances[accepted]:
            accepted += 1
        found.append(accepted)
    return found


def test_buckets_begin_where_they_say() -> None:
    assert [bucket_of(b) for b in (1, 2, 3, 4, 5, 8, 9, 64, 65, 999)] == [1, 2, 3, 3, 5, 5, 9, 33, 65, 65]


def test_without_forgetting_chances_are_plain_ratios_with_the_prior_of_the_position_before() -> None:
    counted = PositionAcceptance(4, discount=1.0, prior=0.5, prior_rounds=4.0)
    rounds = rounds_of(np.random.default_rng(0), [0.8, 0.5, 0.3], 3, 200)
    for begin in range(0, 200, 8):
        counted.observe(3, rounds[begin : begin + 8])
    expected = [sum(a > j for a in rounds) / sum(a >= j for a in rounds) for j in range(3)]
    assert counted.chances() == pytest.approx([*expected, expected[2]])
    assert counted.lengths() == pytest.approx([1.0, *(1.0 + np.cumsum(np.cumprod([*expected, expected[2]])))])


def test_a_position_tried_less_than_the_prior_is_filled_up_with_the_one_before() -> None:
    counted = PositionAcceptance(3, discount=1.0, prior=0.5, prior_rounds=4.0)
    counted.observe(2, [1])
    first = (1.0 + 3 * 0.5) / 4
    second = (0.0 + 3 * first) / 4
    assert counted.chances() == pytest.approx([first, second, second])


def test_optimism_takes_the_share_that_lies_so_many_deviations_above_what_was_seen() -> None:
    counted = PositionAcceptance(1, discount=1.0)
    counted.observe(1, [1, 1, 1, 0, 0, 1, 0, 1])
    upper = counted.chances(2.0)[0]
    # Wilson's interval by its definition: seen is `deviations` standard errors of `upper` below `upper`.
    assert (upper - 5 / 8) / math.sqrt(upper * (1 - upper) / 8) == pytest.approx(2.0)
    assert wilson_upper(0.0, 4.0, 2.0) == pytest.approx(0.5)
    assert wilson_upper(0.3, 9.0, 0.0) == 0.3


def test_old_rounds_fade_and_the_first_position_is_remembered_while_drafts_are_off() -> None:
    counted = PositionAcceptance(2, discount=0.9)
    for _ in range(60):
        counted.observe(2, [2])
    for _ in range(30):
        counted.observe(2, [0])
    old, new = sum(0.9**i for i in range(30, 90)), sum(0.9**i for i in range(30))
    assert counted.chances()[0] == pytest.approx(old / (old + new), rel=1e-3)
    kept = counted.chances()[0]
    for _ in range(500):
        counted.observe(0, [0])
    assert counted.chances() == pytest.approx([kept, kept])
    counted.observe(1, [1, 1, 1, 1])
    weight = 4.0
    assert counted.chances()[0] == pytest.approx((kept * weight + 4.0) / (weight + 4.0))


def test_of_another_draft_nothing_is_known() -> None:
    counted = PositionAcceptance(2, discount=1.0)
    counted.observe(2, [0] * 1000)
    counted.forget()
    assert counted.chances() == [0.5, 0.5]
    counted.observe(2, [2, 2, 0, 2])
    assert counted.chances() == pytest.approx([0.75, (3 + 0.75) / 4])


def test_costs_are_medians_of_the_last_measurements_per_bucket() -> None:
    costs = StepCosts(range(4), window=3)
    for cost_ms in (50.0, 1.0, 2.0, 90.0):
        costs.observe(1, 2, cost_ms)
    costs.observe(1, 0, 1.0)
    costs.observe(5, 2, 7.0)
    assert dict(costs.measured(1)) == {0: 1.0, 2: 2.0}
    assert list(costs.measured(1)) == [0, 2]
    assert costs.predicted(1) == {0: 1.0, 1: 1.5, 2: 2.0, 3: 2.5}
    assert costs.predicted(5) == dict.fromkeys(range(4), 7.0)
    assert costs.predicted(9) == {}


@pytest.mark.parametrize(
    ("known", "k", "expected"),
    [
        ({0: 1.0, 2: 3.0, 6: 5.0}, 1, 2.0),
        ({0: 1.0, 2: 3.0, 6: 5.0}, 2, 3.0),
        ({0: 1.0, 2: 3.0, 6: 5.0}, 4, 4.0),
        ({0: 1.0, 2: 3.0, 6: 5.0}, 6, 5.0),
        ({0: 1.0, 2: 3.0, 6: 5.0}, 8, 6.0),
        ({0: 5.0, 2: 3.0}, 1, 4.0),
        ({0: 5.0, 2: 3.0}, 4, 3.0),
        ({2: 3.0, 4: 5.0}, 0, 1.0),
    ],
)
def test_unmeasured_costs_lie_on_straight_lines_that_never_fall_beyond_what_was_measured(
    known: dict[int, float], k: int, expected: float
) -> None:
    assert interpolated(known, k) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("batch", "steps", "expected"),
    [(2, 0, 10.0), (2, 3, 16.0), (2, 1, 12.0), (6, 3, 40.0), (4, 3, 28.0), (4, 1, 20.0), (8, 3, 52.0), (1, 0, 7.0)],
)
def test_a_table_is_read_along_straight_lines_in_both_directions(batch: int, steps: int, expected: float) -> None:
    table = CostTable({6: {3: 40.0, 0: 22.0}, 2: {0: 10.0, 3: 16.0}})  # in any order
    assert table.cost_ms(batch, steps) == pytest.approx(expected)


def test_a_table_says_what_was_not_measured_scaled_by_what_was() -> None:
    costs = StepCosts((0, 1, 2, 4), CostTable({1: {0: 10.0, 4: 18.0}}))
    assert costs.predicted(1) == {0: 10.0, 1: 12.0, 2: 14.0, 4: 18.0}
    assert costs.measured(1) == {}
    costs.observe(1, 0, 20.0)
    assert costs.predicted(1) == pytest.approx({0: 20.0, 1: 24.0, 2: 28.0, 4: 36.0})
    costs.observe(1, 4, 27.0)
    assert costs.predicted(1) == pytest.approx(
        {0: 20.0, 1: 24.0, 2: 28.0, 4: 27.0}
    )  # the nearer ratio, the lower of two
    assert costs.medians() == {1: {0: 20.0, 4: 27.0}}
