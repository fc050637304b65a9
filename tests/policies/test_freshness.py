"""Freshness: what may be trained on and how much it counts, against plain loops."""

import numpy as np
import pytest
from paceline.policies.freshness import UNKNOWN, Freshness, FreshnessRules, target_ages, tenant_weights, weigh

NOW_S = 1_000.0


def traces_of(make_trace, *rows: tuple[str, str, float]) -> list:
    """Target version, tenant and age in seconds of every trace."""
    return [
        make_trace(i, rounds=1, target_version=version, tenant=tenant, born_at=NOW_S - age_s)
        for i, (version, tenant, age_s) in enumerate(rows)
    ]


def slow_weights(rows: list[tuple[str, str, float]], targets: list[str], rules: FreshnessRules) -> list[float]:
    """Trace by trace, from the definition."""
    aged = []
    for version, _, age_s in rows:
        age = len(targets) - 1 - targets.index(version) if version in targets else None
        counts = age is not None and age <= rules.max_age and age_s <= rules.ttl_s
        aged.append(0.5 ** (age / rules.half_life) if counts else 0.0)
    mass = {tenant: sum(w for w, row in zip(aged, rows, strict=True) if row[1] == tenant) for _, tenant, _ in rows}
    weights = [
        w * min(max(mass.values()) / mass[row[1]], rules.balance) if w else 0.0
        for w, row in zip(aged, rows, strict=True)
    ]
    mean = sum(weights) / sum(w > 0 for w in weights)
    return [w / mean for w in weights]


@pytest.mark.parametrize("balance", [1.0, 2.0, 100.0])
@pytest.mark.parametrize("max_age", [0, 1, 5])
def test_weights_are_those_of_the_definition(make_trace, balance: float, max_age: int) -> None:
    rng = np.random.default_rng(0)
    targets = ["v1", "v2", "v3"]
    rows = [
        (str(rng.choice(["v0", *targets])), str(rng.choice(["", "a", "b"], p=[0.2, 0.7, 0.1])), float(rng.integers(90)))
        for _ in range(60)
    ]
    rules = FreshnessRules(max_age=max_age, half_life=2.0, balance=balance, ttl_s=60.0)
    found = weigh(traces_of(make_trace, *rows), targets, NOW_S, rules)
    assert found.weights == pytest.approx(slow_weights(rows, targets, rules))
    assert found.expired + found.unknown_target + found.old_target == int((found.weights == 0).sum())


def test_every_dropped_trace_is_counted_once_under_its_first_reason(make_trace) -> None:
    rows = [("new", "a", 1.0), ("old", "a", 1.0), ("foreign", "a", 1.0), ("foreign", "a", 99.0), ("old", "a", 99.0)]
    found = weigh(traces_of(make_trace, *rows), ["old", "new"], NOW_S, FreshnessRules(ttl_s=50.0))
    assert (found.expired, found.unknown_target, found.old_target) == (2, 1, 1)
    assert found.weights.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_a_trace_lives_up_to_its_time_and_no_longer(make_trace) -> None:
    found = weigh(traces_of(make_trace, ("v", "", 50.0), ("v", "", 50.001)), ["v"], NOW_S, FreshnessRules(ttl_s=50.0))
    assert found.weights.tolist() == [1.0, 0.0]


def test_ages_count_from_the_newest_target_and_from_the_last_place_of_one_returned_to() -> None:
    assert target_ages(["a", "b", "c", "?"], ["a", "b", "c"]).tolist() == [2, 1, 0, UNKNOWN]
    assert target_ages(["a", "b"], ["a", "b", "a"]).tolist() == [0, 1]


def test_tenants_get_equal_shares_until_one_is_too_small_for_its_factor() -> None:
    tenants = ["big"] * 8 + ["mid"] * 4 + ["tiny"]
    factors = tenant_weights(tenants, np.ones(13), balance=4.0)
    shares = [float(factors[np.array(tenants) == name].sum()) for name in ("big", "mid", "tiny")]
    assert shares == [8.0, 8.0, 4.0]


def test_nothing_to_train_on_is_no_error(make_trace) -> None:
    empty = weigh([], ["v"], NOW_S, FreshnessRules())
    assert isinstance(empty, Freshness)
    assert empty.weights.shape == (0,)
    gone = weigh(traces_of(make_trace, ("v", "", 9.0)), ["v"], NOW_S, FreshnessRules(ttl_s=1.0))
    assert gone.weights.tolist() == [0.0]


@pytest.mark.parametrize("wrong", [{"max_age": -1}, {"half_life": 0.0}, {"balance": 0.5}, {"ttl_s": 0.0}])
def test_rules_out_of_range_are_a_mistake(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="got"):
        FreshnessRules(**wrong)


def test_a_long_name_costs_the_others_no_room():
    tenants = ["x" * 1_000_000] + [f"tenant-{i}" for i in range(3000)]  # side by side in one array: 12 GB
    assert tenant_weights(tenants, np.ones(3001), balance=4.0).tolist() == [1.0] * 3001
