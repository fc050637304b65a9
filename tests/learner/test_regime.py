"""Cold, warm, and the learning rate of a draft that goes from one to the other."""

import math
from itertools import pairwise

import pytest
from paceline.learner.training.plan import RECIPE, Recipe
from paceline.learner.training.regime import Regime
from paceline.policies.objectives.names import Weighting

COLD, WARM = 0.1, 0.9


def rates(regime: Regime, share: float, steps: int, recipe: Recipe = RECIPE) -> list[float]:
    """Of each of so many steps of a fit that found `share`."""
    regime.choose(share, recipe)
    found = []
    for _ in range(steps):
        found.append(regime.learning_rate(recipe))
        regime.record_step()
    return found


def test_the_regime_does_not_toggle_on_noise() -> None:
    regime, seen = Regime(), []
    for share in (0.1, 0.49, 0.5, 0.45, math.nan, 0.41, 0.39, 0.45, 0.6):
        regime.choose(share, RECIPE)
        seen.append(regime.weighting)
    survival, geometric = Weighting.SURVIVAL, Weighting.GEOMETRIC
    assert seen == [survival, survival, *[geometric] * 4, survival, survival, geometric]


def test_a_draft_that_was_never_cold_learns_at_the_warm_rate_from_its_first_step_on() -> None:
    assert rates(Regime(), WARM, 3) == [5e-4] * 3


def test_the_cold_rate_halves_every_forty_steps_from_the_first_warm_one_and_ends_at_the_warm_rate() -> None:
    regime = Regime()
    assert rates(regime, COLD, 50) == [5e-3] * 50
    warm = rates(regime, WARM, 400)
    assert [warm[n] for n in (0, 40, 80, 120)] == pytest.approx([5e-3, 2.5e-3, 1.25e-3, 0.625e-3])
    assert all(later < earlier for earlier, later in pairwise(warm[:134]))
    assert warm[133:] == [5e-4] * 267  # 40 * log2(10) is 132.9


def test_a_draft_that_is_cold_again_starts_over() -> None:
    regime = Regime()
    rates(regime, COLD, 1)
    rates(regime, WARM, 200)
    assert rates(regime, COLD, 1) == [5e-3]
    assert rates(regime, WARM, 2) == pytest.approx([5e-3, 5e-3 * 0.5 ** (1 / 40)])


def test_without_a_half_life_the_rate_falls_at_once() -> None:
    regime, recipe = Regime(), Recipe(rate_half_life_steps=0.0)
    assert rates(regime, COLD, 2, recipe) == [5e-3] * 2
    assert rates(regime, WARM, 2, recipe) == [5e-4] * 2


def test_a_recipe_whose_rates_are_the_same_has_that_rate_always() -> None:
    regime, recipe = Regime(), Recipe(cold_learning_rate=2e-3, warm_learning_rate=2e-3)
    assert {*rates(regime, COLD, 3, recipe), *rates(regime, WARM, 100, recipe)} == {2e-3}


def test_a_state_goes_on_where_it_was() -> None:
    regime, other = Regime(), Regime()
    rates(regime, COLD, 1)
    rates(regime, WARM, 10)
    other.load(regime.state())
    assert (
        rates(other, WARM, 5)
        == rates(regime, WARM, 5)
        == pytest.approx([5e-3 * 0.5 ** (n / 40) for n in range(10, 15)])
    )
