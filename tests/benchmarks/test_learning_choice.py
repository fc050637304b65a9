"""The choice among drafters in the bench: Hedge by label, and figures of the later half."""

import itertools
import math
from functools import partial

import pytest
from paceline.benchmarks.learning.choice import NGRAM, ONE, OWN, Request, accepted, best_known, fixed, hedged, markdown

NAMES = (ONE, OWN)


def requests(*rounds: tuple[str, float, float]) -> list[Request]:
    """Of ten tokens each: label, and the rounds of either draft."""
    return [Request(label, 10, {ONE: one, OWN: own}) for label, one, own in rounds]


def test_shares_are_those_of_the_losses_so_far_label_by_label() -> None:
    some = requests(("a", 10, 5), ("b", 4, 8), ("a", 10, 5), ("a", 10, 5))
    found = hedged(some, NAMES)
    assert found[0] == 7.5  # nothing is known
    # In rounds per token: 0.75 expected of the first request, 0.5 mixed at an infinite rate: the least loss.
    rate = math.log(2) / 0.25
    # The worse has a weight of exp(-rate / 2) = 1 / 4, on a label that is new as on a.
    assert found[1] == pytest.approx(4 * 0.2 + 8 * 0.8)
    assert found[2] == pytest.approx(10 * 0.2 + 5 * 0.8)
    mixed = (math.log((1 + math.exp(-rate * 0.5)) / 2) - math.log((1 + math.exp(-rate)) / 2)) / rate + 0.5
    rate = math.log(2) / (0.25 + 0.6 - mixed)
    assert found[3] == pytest.approx((10 * math.exp(-rate) + 5) / (math.exp(-rate) + 1))


def test_regret_stays_below_the_bound_whoever_wins() -> None:
    for pattern in itertools.product((0, 1), repeat=6):
        some = requests(*(("a", *((10, 3) if bit else (3, 10))) for bit in pattern * 6))
        best = min(sum(request.rounds[name] for request in some) for name in NAMES)
        regret = (sum(hedged(some, NAMES)) - best) / 10  # losses are rounds per token, of 0.3 to 1
        assert regret <= 0.7 * (math.sqrt(len(some) * math.log(2)) + 4 / 3 * math.log(2) + 2)


def test_a_drafter_that_is_always_better_soon_has_all() -> None:
    some = requests(*[("a", 10, 9.9)] * 20)
    assert hedged(some, NAMES)[-1] < 9.9 + 1e-4


def test_figures_are_accepted_drafts_per_round_of_the_later_half() -> None:
    some = requests(("a", 10, 10), ("b", 10, 10), ("a", 5, 2), ("b", 4, 8))
    assert accepted(partial(fixed, ONE), some, None) == pytest.approx((20 - 9) / 9)
    assert accepted(partial(fixed, OWN), some, "a") == pytest.approx(4.0)
    assert accepted(best_known, some, None) == pytest.approx((20 - 6) / 6)  # 2 of the one, 4 of the other


def test_the_table_has_a_row_for_all_and_for_each_label() -> None:
    rounds = {ONE: 5.0, OWN: 5.0, "prompt lookup": 10.0, NGRAM: 2.0}
    seeds = [[Request(label, 10, rounds) for label in "abab"] for _ in range(3)]
    lines = [line.split(" | ") for line in markdown(seeds).splitlines()]
    assert [line[0] for line in lines] == ["| label", "| ---", "| all", "| a", "| b"]
    assert lines[2][1:5] == ["1.00 ± 0.00", "1.00 ± 0.00", "0.00 ± 0.00", "4.00 ± 0.00"]
