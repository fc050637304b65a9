"""Freshness: what may be trained on and how much it counts, against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies.trace_weighting import (
    UNKNOWN,
    age_weights,
    is_expired,
    known_targets,
    target_ages,
    tenant_weights,
)


@pytest.mark.parametrize(
    ("age_s", "ttl_s", "expired"),
    [(50.0, 50.0, False), (50.001, 50.0, True), (1e12, 0.0, False), (-9.0, 5.0, False)],
)
def test_a_trace_lives_up_to_its_time_and_no_longer(age_s: float, ttl_s: float, expired: bool) -> None:
    assert is_expired(1000.0 - age_s, 1000.0, ttl_s) is expired


@pytest.mark.parametrize(
    ("current", "named", "max_age", "known"),
    [
        ("5", (), 0, ("5",)),
        ("5", (), 2, ("3", "4", "5")),
        ("1", (), 9, ("0", "1")),
        ("2026-05", (), 0, ("2026-05",)),
        ("c", ("a", "b", "c"), 0, ("c",)),
        ("c", ("a", "b", "c"), 1, ("b", "c")),
        ("c", ("a", "b", "c"), 7, ("a", "b", "c")),
        ("9", ("3", "7", "9"), 1, ("7", "9")),
        ("a", ("a", "b", "a"), 1, ("b", "a")),
    ],
)
def test_known_targets_end_with_the_one_in_use(
    current: str, named: tuple[str, ...], max_age: int, known: tuple[str, ...]
) -> None:
    assert known_targets(current, named, max_age) == known


@pytest.mark.parametrize("version", ["v5", "05", "-5", "5.0", "²", ""])
def test_versions_that_nobody_counts_must_be_named(version: str) -> None:
    with pytest.raises(ValueError, match=r"expected one, since version .* is no whole number"):
        known_targets(version, (), 1)


def test_a_history_that_ends_with_another_version_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="got a,b, expected a list that ends with the target's version 'c'"):
        known_targets("c", ("a", "b"), 1)


def test_ages_count_from_the_newest_target_and_from_the_last_place_of_one_returned_to() -> None:
    assert target_ages(["a", "b", "c", "?"], ["a", "b", "c"]).tolist() == [2, 1, 0, UNKNOWN]
    assert target_ages(["a", "b"], ["a", "b", "a"]).tolist() == [0, 1]


@given(st.lists(st.sampled_from("abcd?")), st.lists(st.sampled_from("abcd"), min_size=1, max_size=5))
def test_every_version_older_counts_half(versions: list[str], targets: list[str]) -> None:
    def slow(version: str) -> float:
        weight = 1.0
        for target in reversed(targets):
            if version == target:
                return weight
            weight /= 2
        return 0.0

    assert age_weights(versions, targets).tolist() == [slow(version) for version in versions]


def test_tenants_get_equal_shares_until_one_is_too_small_for_its_factor() -> None:
    tenants = ["big"] * 8 + ["mid"] * 4 + ["tiny"]
    factors = tenant_weights(tenants, np.ones(13), balance=4.0)
    shares = [float(factors[np.array(tenants) == name].sum()) for name in ("big", "mid", "tiny")]
    assert shares == [8.0, 8.0, 4.0]


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from([0.25, 0.5, 1.0])), min_size=1),
    st.sampled_from([1.0, 2.0, 100.0]),
)
def test_factors_are_those_of_the_definition(rows: list[tuple[str, float]], balance: float) -> None:
    mass: dict[str, float] = {}
    for tenant, weight in rows:
        mass[tenant] = mass.get(tenant, 0.0) + weight
    expected = [min(max(mass.values()) / mass[tenant], balance) for tenant, _ in rows]
    found = tenant_weights([tenant for tenant, _ in rows], np.array([weight for _, weight in rows]), balance)
    assert found == pytest.approx(expected)


@pytest.mark.guarantee("bounded-memory")
def test_a_long_name_costs_the_others_no_room():
    tenants = ["x" * 1_000_000] + [f"tenant-{i}" for i in range(3000)]  # side by side in one array: 12 GB
    assert tenant_weights(tenants, np.ones(3001), balance=4.0).tolist() == [1.0] * 3001
