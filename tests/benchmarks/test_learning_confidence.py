"""The arithmetic of the bench of confidence, on rounds written down by hand."""

import numpy as np
import pytest
from paceline.benchmarks.learning.confidence import BINS, Roots, at_least, error, pairs, rounds_of, speed, table_of

#: Two of the first round's drafts are accepted; the second round, three places on, has none.
ROOTS = Roots(probabilities=[[0.9, 0.8, 0.3], [0.7], [0.6], [0.2]], accepted=[2, 0, 0, 0])


def test_a_round_begins_where_the_one_before_has_ended_and_accepts_no_more_than_it_drafts():
    assert [*rounds_of(ROOTS, lambda *_: 7)] == [(0, 7, 2), (3, 7, 0)]
    assert [*rounds_of(ROOTS, lambda *_: 1)] == [(0, 1, 1), (2, 1, 0), (3, 1, 0)]
    assert [*rounds_of(ROOTS, lambda *_: 0)] == [(place, 0, 0) for place in range(4)]


def test_of_every_draft_whose_forerunners_are_accepted_it_is_known_whether_it_is():
    chances, hits = pairs([ROOTS])
    assert (chances.tolist(), hits.tolist()) == ([0.9, 0.8, 0.3, 0.2], [True, True, False, False])


def test_the_error_is_the_distance_from_the_accepted_share_by_bin():
    chances = np.array([0.91, 0.92, 0.93, 0.94, 0.31])
    hits = np.array([True, False, True, False, False])
    assert error(chances, hits) == pytest.approx((4 * (0.925 - 0.5) + 0.31) / 5)


def test_a_table_says_the_accepted_share_and_of_an_empty_bin_its_middle():
    found = table_of(np.full(99, 0.93), np.arange(99) < 33)
    assert found[18] == pytest.approx((33 + 0.925) / 100)
    assert found[0] == pytest.approx(0.5 / BINS)


def test_tokens_per_cost_are_those_of_the_rounds_and_a_threshold_ends_a_chain():
    by_one = speed([ROOTS], [lambda *_: 1], 0.1)
    assert by_one == pytest.approx(4 / (3 * 1.1))
    held = np.array([[0.9, 0.72], [0.7, 0.4], [0.6, 0.3], [0.2, 0.1]])
    lengths = [at_least(held, 0.65)(ROOTS, place) for place in range(4)]
    assert lengths == [3, 2, 1, 1]
