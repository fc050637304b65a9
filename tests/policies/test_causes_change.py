"""Contributions to tokens per second add up to what the totals say, whatever was counted."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.policies.readings.causes.amounts import BUSY, IDLE, PARTLY, Amounts, Rounds, ServedKey, StepKey, Steps
from paceline.policies.readings.causes.change import change
from paceline.policies.readings.causes.parts import REMEDIES, Cause, Factor, Part, cause_of, parts_of

served_keys = st.builds(
    ServedKey, st.sampled_from(["", "py", "prose"]), st.sampled_from(["greedy", "sampled"]), st.integers(-1, 3)
)
step_keys = st.builds(StepKey, st.sampled_from([1, 2, 8]), st.integers(0, 3), st.sampled_from([BUSY, IDLE, PARTLY]))
cells = st.builds(lambda rounds, more: Rounds(rounds, round(rounds * more)), st.integers(0, 5000), st.floats(0.0, 3.0))
steps = st.builds(
    lambda steps, ms, tokens, size: Steps(steps, steps * ms / 1e3, tokens * steps * size, steps * size),
    st.integers(30, 5000),
    st.floats(0.5, 80.0),
    st.integers(1, 4),
    st.integers(1, 8),
)
clocks = st.dictionaries(
    st.sampled_from(["decode", "prefill", "swap", "idle", "odd"]), st.floats(0.0, 300.0), min_size=1
)
periods = st.builds(
    Amounts,
    served=st.dictionaries(served_keys, cells, max_size=6),
    steps=st.dictionaries(step_keys, steps, min_size=1, max_size=6),
    seconds=clocks,
)


def clock_s(period: Amounts) -> float:
    return max(sum(period.seconds.values()), sum(cell.seconds for cell in period.steps.values()))


@settings(deadline=None)  # on a busy machine a case may take long
@given(periods, periods)
def test_contributions_add_up_to_the_change_of_tokens_per_second(before: Amounts, now: Amounts) -> None:
    rates = [sum(cell.tokens for cell in period.steps.values()) / clock_s(period) for period in (before, now)]
    found = change(before, now)
    assert found.total == pytest.approx(math.log(rates[1] / rates[0]), abs=1e-9)
    assert sum(found.of(cause) or 0.0 for cause in Cause) == pytest.approx(found.total, abs=1e-9)


@settings(deadline=None)  # on a busy machine a case may take long
@given(periods, periods)
def test_every_factor_is_the_sum_of_its_parts(before: Amounts, now: Amounts) -> None:
    def factors(period: Amounts) -> dict[Factor, float]:
        count, seconds, tokens, requests = (
            sum(getattr(cell, name) for cell in period.steps.values())
            for name in ("steps", "seconds", "tokens", "requests")
        )
        return {
            Factor.RUNNING: requests / count,
            Factor.ACCEPT_LENGTH: tokens / requests,
            Factor.STEP_TIME: count / seconds,
            Factor.DECODE_SHARE: seconds / clock_s(period),
        }

    found, was, now_is = change(before, now), factors(before), factors(now)
    for factor in Factor:
        assert found.of_factor(factor) == pytest.approx(math.log(now_is[factor] / was[factor]), abs=1e-9)


@settings(deadline=None)  # on a busy machine a case may take long
@given(periods, periods)
def test_what_is_not_load_adds_up_to_the_speed_of_a_request(before: Amounts, now: Amounts) -> None:
    rates = [period.request_tokens_per_second for period in (before, now)]
    assert change(before, now).request_speed == pytest.approx(math.log(rates[1] / rates[0]), abs=1e-9)


def test_without_a_step_clock_the_accept_length_alone_is_explained() -> None:
    before = Amounts(served={ServedKey("py", "greedy", 1): Rounds(1000, 1400)})
    now = Amounts(served={ServedKey("py", "greedy", 1): Rounds(1000, 500)})
    found = change(before, now)
    assert found.total == pytest.approx(math.log(1.5 / 2.4))
    assert found.of(Cause.STALE) == pytest.approx(found.total)
    assert {Part.RUNNING, Part.BATCH, Part.IDLE, Part.UNCAPTURED} <= found.unknown.keys()
    assert all("timed" in why for why in found.unknown.values())


def test_without_captured_rounds_the_accept_length_is_not_split() -> None:
    before = Amounts(served={}, steps={StepKey(4, 3, IDLE): Steps(1000, 20.0, 9600, 4000)}, seconds={"decode": 20.0})
    now = Amounts(served={}, steps={StepKey(4, 3, IDLE): Steps(1000, 20.0, 6000, 4000)}, seconds={"decode": 20.0})
    found = change(before, now)
    assert found.of(Cause.UNCAPTURED) == pytest.approx(math.log(1.5 / 2.4))
    assert {Part.LABELS, Part.SAMPLING, Part.DRAFT, Part.STALE} == found.unknown.keys()
    assert all("captured" in why for why in found.unknown.values())


def test_nothing_is_known_of_nothing() -> None:
    found = change(Amounts(), Amounts())
    assert (dict(found.parts), found.unknown.keys()) == ({}, set(Part))


def test_every_part_counts_for_one_cause_that_has_a_remedy() -> None:
    assert sorted(part for cause in Cause for part in parts_of(cause)) == sorted(Part)
    assert {cause_of(part) for part in Part} == set(Cause) == REMEDIES.keys()
