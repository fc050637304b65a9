"""Sums that can be subtracted give the same accept length and interval as the requests themselves."""

import math

import numpy as np
import pytest
from paceline.policies.readings.ratio_sums import MIN_REQUESTS, RatioSums


def drawn(seed: int, requests: int) -> list[tuple[int, int]]:
    """(rounds, accepted) of each request; requests differ in ease."""
    rng = np.random.default_rng(seed)
    rounds = rng.integers(5, 40, requests)
    return [
        (int(n), int(rng.binomial(3 * n, ease)))
        for n, ease in zip(rounds, rng.uniform(0.1, 0.7, requests), strict=True)
    ]


def pooled(requests: list[tuple[int, int]]) -> RatioSums:
    return sum((RatioSums.of(*request) for request in requests), RatioSums())


def test_the_standard_error_is_that_of_the_residuals() -> None:
    requests = drawn(1, 30)
    rounds, accepted = (np.array(column, float) for column in zip(*requests, strict=True))
    ratio = accepted.sum() / rounds.sum()
    residuals = accepted - ratio * rounds
    expected = math.sqrt(len(requests)) * residuals.std(ddof=1) / rounds.sum()  # the residuals' mean is 0
    sums = pooled(requests)
    assert sums.accept_length == pytest.approx(1 + ratio)
    assert sums.standard_error == pytest.approx(expected)


def test_a_difference_is_what_happened_in_between() -> None:
    requests = drawn(2, 40)
    assert pooled(requests) - pooled(requests[:25]) == pooled(requests[25:])


def test_the_interval_holds_the_true_length_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(400):
        ease = rng.uniform(0.1, 0.7, 60)  # mean 0.4, three drafts a round: accept length 2.2
        sums = sum((RatioSums.of(20, int(rng.binomial(60, p))) for p in ease), RatioSums())
        assert sums.interval is not None
        held += sums.interval[0] <= 2.2 <= sums.interval[1]
    assert 0.92 <= held / 400 <= 0.98  # 400 draws of 95 % lie within this with a chance of 0.99


def test_few_requests_have_no_interval() -> None:
    few = pooled(drawn(4, MIN_REQUESTS - 1))
    assert (few.accept_length is None, few.standard_error, few.interval) == (False, None, None)
    assert RatioSums().accept_length is None
