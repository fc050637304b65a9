"""A change of a mean splits exactly, level by level, and groups that one period lacks move as the others do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.policies.readings.causes.levels import Key, Weighted, pooled, split_change

ENOUGH = 50.0

weights = st.floats(0.5, 1e4)
values = st.floats(0.05, 50.0)
keys = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(1, 3))
periods = st.dictionaries(keys, st.tuples(weights, values), min_size=1, max_size=8).map(
    lambda found: {key: Weighted(weight, weight * value) for key, (weight, value) in found.items()}
)


@settings(deadline=None)  # on a busy machine a case may take long
@given(periods, periods)
def test_the_parts_of_a_change_add_up(before: dict[Key, Weighted], now: dict[Key, Weighted]) -> None:
    parts = split_change(before, now, levels=3, enough=ENOUGH)
    change = pooled(now.values()).mean - pooled(before.values()).mean
    assert sum(parts) == pytest.approx(change, abs=1e-9, rel=1e-9)


@settings(deadline=None)  # on a busy machine a case may take long
@given(periods, periods)
def test_the_parts_are_the_same_seen_from_the_other_period(
    before: dict[Key, Weighted], now: dict[Key, Weighted]
) -> None:
    there = split_change(before, now, levels=3, enough=ENOUGH)
    back = split_change(now, before, levels=3, enough=ENOUGH)
    assert back == pytest.approx(tuple(-part for part in there), abs=1e-9, rel=1e-9)


def cells(**found: tuple[float, float]) -> dict[Key, Weighted]:
    """Name -> (weight, mean)."""
    return {(name,): Weighted(weight, weight * mean) for name, (weight, mean) in found.items()}


def test_shares_change_at_the_mean_values_and_values_at_the_mean_shares() -> None:
    before, now = cells(a=(800, 2.0), b=(200, 3.0)), cells(a=(300, 2.2), b=(700, 3.4))
    mix, within = split_change(before, now, levels=1, enough=ENOUGH)
    assert mix == pytest.approx((0.3 - 0.8) * (2.0 + 2.2) / 2 + (0.7 - 0.2) * (3.0 + 3.4) / 2)
    assert within == pytest.approx((0.8 + 0.3) / 2 * 0.2 + (0.2 + 0.7) / 2 * 0.4)


def test_a_group_that_one_period_lacks_is_all_mix_where_nothing_else_is_known() -> None:
    mix, within = split_change(cells(a=(900, 2.0)), cells(b=(900, 3.0)), levels=1, enough=ENOUGH)
    assert (mix, within) == (pytest.approx(1.0), pytest.approx(0.0))


def test_a_group_that_one_period_lacks_moves_as_the_others_do() -> None:
    # b became half as dear in both periods' terms; a, which is gone, would have as well: all the change is within.
    before, now = cells(a=(900, 2.0), b=(100, 2.0)), cells(b=(1000, 1.0))
    mix, within = split_change(before, now, levels=1, enough=ENOUGH)
    assert (mix, within) == (pytest.approx(0.0), pytest.approx(-1.0))


def test_a_few_of_a_group_do_not_say_how_it_has_moved() -> None:
    # Three rounds of a are left, by chance twice as dear: 99.7 % of the change is still that b took its place.
    before, now = cells(a=(1000, 2.0)), cells(a=(3, 4.0), b=(997, 1.0))
    mix, within = split_change(before, now, levels=1, enough=ENOUGH)
    assert mix == pytest.approx(0.997 * (1.0 - 2.0))
    assert within == pytest.approx(0.003 * (4.0 - 2.0))
