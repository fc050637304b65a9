"""The test beside live requests: the likelihood ratio as defined, fair whatever traffic does between blocks."""

import math
from fractions import Fraction
from itertools import combinations, permutations

import numpy as np
import pytest
from paceline.policies.canary_blocks import BLOCK_BEGINS, WEIGHTS, BlockTest, log_ratio


def plackett_luce(arms: tuple[bool, ...], weight: float) -> Fraction:
    """Chance of this order of arms where the next request is drawn by weight, over all orders of the requests."""
    weights = [Fraction(weight) if is_canary else Fraction(1) for is_canary in arms]
    chance = Fraction(0)
    for order in permutations(range(len(arms))):
        if [arms[i] for i in order] != list(arms):
            continue
        left, drawn = sum(weights), Fraction(1)
        for i in order:
            drawn, left = drawn * weights[i] / left, left - weights[i]
        chance += drawn
    return chance


def assignments(canaries: int, of: int) -> list[tuple[bool, ...]]:
    return [tuple(place in chosen for place in range(of)) for chosen in combinations(range(of), canaries)]


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize(("canaries", "of"), [(0, 3), (1, 1), (3, 3), (1, 4), (2, 5), (3, 6)])
def test_the_ratio_is_that_of_the_chance_of_the_order_to_that_of_any_assignment(
    canaries: int, of: int, weight: float
) -> None:
    drawn = assignments(canaries, of)
    for arms in drawn:
        assert math.exp(log_ratio(arms, weight)) == pytest.approx(float(plackett_luce(arms, weight) * len(drawn)))
    assert sum(plackett_luce(arms, weight) for arms in drawn) == 1  # so its mean over equally likely ones is 1


@pytest.mark.parametrize("is_canary", [False, True])
def test_one_more_begin_at_a_place_that_is_drawn_leaves_the_ratio_as_it_is_in_the_mean(is_canary: bool) -> None:
    for arms in assignments(2, 5):
        grown = [[*arms[:place], is_canary, *arms[place:]] for place in range(len(arms) + 1)]
        mean = np.mean([math.exp(log_ratio(each, 4.0)) for each in grown])
        assert mean == pytest.approx(math.exp(log_ratio(arms, 4.0)))


def capital_of(*blocks: tuple[bool, ...]) -> float:
    """The mean over the weights of the product over blocks."""
    count = [math.comb(len(arms), sum(arms)) for arms in blocks]
    return float(
        np.mean(
            [
                math.prod(plackett_luce(arms, weight) * n for arms, n in zip(blocks, count, strict=True))
                for weight in WEIGHTS
            ]
        )
    )


def test_the_capital_is_the_product_of_the_blocks_and_its_highest_is_kept() -> None:
    test = BlockTest()
    begins = [("c1", 0.1, True), ("l1", 0.5, False), ("c2", 0.2, True), ("l2", 0.4, False)]
    for begin in begins:
        test.add(begin[0], begin[1], is_canary=begin[2])
    assert test.log_capital == 0.0  # nothing is compared yet
    test.compare()
    first = (True, True, False, False)
    assert math.exp(test.log_capital) == pytest.approx(capital_of(first))
    test.start_block()
    # The lowest of all, and the highest of its own block: only that counts.
    test.add("l3", 0.0, is_canary=False)
    test.add("c3", 0.05, is_canary=True)
    test.compare()
    assert math.exp(test.log_capital) == pytest.approx(capital_of(first, (False, True)))
    assert math.exp(test.highest_log_capital) == pytest.approx(capital_of(first))


def test_equal_begins_are_ordered_by_a_coin_toss_that_knows_no_arm() -> None:
    rng, capitals = np.random.default_rng(0), []
    for trial in range(2000):
        test, canary = BlockTest(), int(rng.integers(4))
        for i in range(4):
            test.add(f"{trial}-{i}", 1.0, is_canary=i == canary)
        test.compare()
        capitals.append(math.exp(test.log_capital))
    assert np.mean(capitals) == pytest.approx(1.0, abs=3 * np.std(capitals) / math.sqrt(len(capitals)))
    places = [tuple(i == place for i in range(4)) for place in range(4)]
    assert {round(capital, 6) for capital in capitals} == {round(capital_of(arms), 6) for arms in places}


def test_a_block_is_full_once_either_arm_has_begun_often_enough() -> None:
    test = BlockTest()
    for i in range(2 * BLOCK_BEGINS):
        test.add(f"live-{i}", 1.0, is_canary=False)
    for i in range(BLOCK_BEGINS):
        assert not test.is_full
        test.add(f"canary-{i}", 1.0, is_canary=True)
    assert test.is_full


def test_between_equal_drafts_it_is_seldom_ever_high_though_traffic_changes_with_every_block() -> None:
    rng, trials, threshold, alarms = np.random.default_rng(1), 400, 20.0, 0
    for trial in range(trials):
        test = BlockTest()
        for block in range(20):
            test.start_block()
            for i, begin in enumerate(rng.integers(0, 6, 12) / 4 + rng.uniform(0.0, 3.0)):
                test.add(f"{trial}-{block}-{i}", float(begin), is_canary=i % 2 == 1)
            test.compare()
        alarms += math.exp(test.highest_log_capital) >= threshold
    error = 1.0 / threshold
    assert alarms / trials <= error + 3 * math.sqrt(error / trials)


def test_eight_dead_requests_beside_eight_live_ones_are_enough() -> None:
    test = BlockTest()
    for i in range(8):
        test.add(f"live-{i}", 0.5 + i / 8, is_canary=False)
        test.add(f"dead-{i}", 0.0, is_canary=True)
    test.compare()
    assert math.exp(test.log_capital) > 50
