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


def test_weights_are_those_of_the_losses_so_far_label_by_label() -> None:
    some = requests(("a", 10, 5), ("b", 4, 8), ("a", 10, 5), ("a", 10, 5))
    found = hedged(some, NAMES)
    assert found[:2] == [7.5, 6.0]  # nothing is known of either label
    for place, losses in ((2, 0.5), (3, 1.0)):  # rounds per token by which the first has done worse on a
        eta = math.sqrt(8 * math.log(2) / place)
        worse = math.exp(-eta * losses) / (1 + math.exp(-eta * losses))
        assert found[place] == pytest.approx(10 * worse + 5 * (1 - worse))


def test_regret_stays_below_the_bound_whoever_wins() -> None:
    for pattern in itertools.product((0, 1), repeat=6):
        some = requests(*(("a", *((10, 3) if bit else (3, 10))) for bit in pattern * 6))
        best = min(sum(request.rounds[name] for request in some) for name in NAMES)
        regret = (sum(hedged(some, NAMES)) - best) / 10  # losses are rounds per token
        assert regret <= 2 * math.sqrt(len(some) / 2 * math.log(2)) + math.sqrt(math.log(2) / 8)


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
