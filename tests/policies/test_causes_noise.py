"""Intervals of contributions: Student's quantile, and how often they hold the truth."""

import pytest
from made_histories import Conditions, histories
from paceline.policies.readings.causes.amounts import Amounts
from paceline.policies.readings.causes.explanation import explain
from paceline.policies.readings.causes.noise import MIN_GROUPS, Noise, is_noise, noise_of, t_quantile
from paceline.policies.readings.causes.parts import Cause
from paceline.policies.readings.causes.periods import since_periods
from scipy.stats import t as student


@pytest.mark.parametrize("freedom", [5, 11, 30])
@pytest.mark.parametrize("chance", [0.9, 0.975, 0.9975])
def test_the_quantile_is_students(chance: float, freedom: int) -> None:
    assert t_quantile(chance, freedom) == pytest.approx(student.ppf(chance, freedom), rel=0.02)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held, runs = 0, 100
    for seed in range(runs):
        found = histories([(120.0, Conditions()), (60.0, Conditions())], noise=0.1, seed=seed)
        rest = {f.cause: f.effect for f in explain(*since_periods(found, 120.0, 180.0)).findings}[Cause.REST]
        held += rest.low <= 0.0 <= rest.high
    assert held >= 88  # of 100 at 95 %: fewer have a chance of 0.15 %


def test_few_stretches_tell_no_noise() -> None:
    _, now = since_periods(histories([(60.0, Conditions())]), 60.0, 60.0)
    few = list(now.stretches)[: MIN_GROUPS - 1]
    assert len(few) == MIN_GROUPS - 1
    assert noise_of(few, now.stretches, {"total": lambda each: each.total}) == {}
    assert noise_of([*few, Amounts()], now.stretches, {"total": lambda each: each.total}) == {}


@pytest.mark.parametrize(
    ("log", "noise", "expected"),
    [(0.015, Noise(1e-6, 11), True), (0.03, Noise(1e-6, 11), False), (0.03, Noise(0.02, 11), True)],
    ids=["too small to matter", "small and sure", "large and unsure"],
)
def test_what_is_noise(log: float, noise: Noise, expected: bool) -> None:
    assert is_noise(log, noise, 0.05 / 12) is is_noise(-log, noise, 0.05 / 12) is expected


def test_where_no_interval_can_be_given_a_cause_must_be_large() -> None:
    assert is_noise(0.09, None, 0.05 / 12)
    assert not is_noise(-0.11, None, 0.05 / 12)
