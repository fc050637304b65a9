"""The harm test: capital as defined, fair between equal drafts however rounds depend, soon high on a dead one."""

import math
from hashlib import blake2b

import numpy as np
import pytest
from paceline.policies.canary_harm import HarmTest, log_mean_exp

Row = tuple[str, bool, float]  # request id, is it the canary's, accepted per round


def capital_of(rows: list[Row]) -> float:
    """Highest capital, all recomputed at every step: the mean of two bets on low begins and nine on the rank."""
    order = {name: (begin, blake2b(name.encode(), digest_size=8).digest()) for name, _, begin in rows}
    highest, low, ranks = 1.0, {0.03: [1.0], 0.1: [1.0]}, []
    hits = {share: [] for share in low}
    for i, (name, is_canary, _) in enumerate(rows):
        before, live = [order[n] for n, *_ in rows[:i]], sorted(order[n] for n, c, _ in rows[:i] if not c)
        if not is_canary or not live:
            continue
        for share, capitals in low.items():
            edge = live[math.ceil(share * len(live)) - 1]
            fair = sum(other <= edge for other in before) / (i + 1)
            chance = max((sum(hits[share]) + 2) / (len(hits[share]) + 2.5), fair)
            is_low = order[name] < edge
            hits[share].append(is_low)
            capitals.append(capitals[-1] * (chance / fair if is_low else (1 - chance) / (1 - fair)))
        ranks.append((1 + sum(other < order[name] for other in before)) / (i + 1))
        rank_capital = np.mean([np.prod([k / 10 * p ** (k / 10 - 1) for p in ranks]) for k in range(1, 10)])
        highest = max(highest, float(np.mean([rank_capital, *(capitals[-1] for capitals in low.values())])))
    return highest


def fed(rows: list[Row]) -> HarmTest:
    test = HarmTest(8)
    for name, is_canary, begin in rows:
        (test.add_canary if is_canary else test.add_live)(name, begin)
    return test


def rows_of(rng: np.random.Generator, live: int, canaries: int, scale: float) -> list[Row]:
    """Live begins, then both arms in turn; many are equal. `scale` is what the canary accepts of what live does."""
    rows = [(f"before-{i}", False, float(rng.integers(0, 12)) / 4) for i in range(live)]
    for i in range(canaries):
        rows.append((f"canary-{i}", True, scale * float(rng.integers(0, 12)) / 4))
        rows.append((f"live-{i}", False, float(rng.integers(0, 12)) / 4))
    return rows


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("live", [0, 1, 30])
def test_the_capital_is_that_of_the_definition(scale: float, live: int) -> None:
    rows = rows_of(np.random.default_rng(live), live, 25, scale)
    assert math.exp(fed(rows).highest_log_capital) == pytest.approx(capital_of(rows))


@pytest.mark.parametrize("threshold", [5.0, 20.0])
def test_between_equal_drafts_it_is_seldom_ever_high_though_all_rounds_of_a_request_are_alike(threshold: float) -> None:
    # A request is one coin thrown once and many begins are equal: nothing in it is independent but requests.
    rng, trials = np.random.default_rng(0), 600
    alarms = 0
    for trial in range(trials):
        rows = [(f"{trial}-{name}", arm, begin) for name, arm, begin in rows_of(rng, 40, 40, 1.0)]
        alarms += math.exp(fed(rows).highest_log_capital) >= threshold
    error = 1.0 / threshold
    assert alarms / trials <= error + 3 * math.sqrt(error / trials)


def test_three_dead_requests_against_fifty_live_ones_are_enough() -> None:
    rng = np.random.default_rng(1)
    for trial in range(20):
        live = [(f"{trial}-{i}", False, float(begin)) for i, begin in enumerate(rng.gamma(4.0, 0.25, 50))]
        dead = [(f"{trial}-dead-{i}", True, 0.02) for i in range(3)]
        assert math.exp(fed([*live, *dead]).highest_log_capital) > 200


def test_a_better_draft_never_looks_harmful() -> None:
    rows = [(name, arm, begin + arm) for name, arm, begin in rows_of(np.random.default_rng(2), 50, 200, 1.0)]
    assert fed(rows).highest_log_capital == pytest.approx(0.0, abs=math.log(3))


def test_nothing_is_bet_before_a_live_request() -> None:
    test = HarmTest(8)
    for i in range(50):
        test.add_canary(str(i), 0.0)
    assert test.highest_log_capital == 0.0


def test_the_mean_of_huge_capitals_is_finite() -> None:
    assert log_mean_exp([1000.0, 1000.0]) == 1000.0
    assert log_mean_exp([1000.0, -1000.0]) == pytest.approx(1000.0 - math.log(2))
    assert log_mean_exp([math.log(1.0), math.log(3.0)]) == pytest.approx(math.log(2.0))
