"""Batches: every fresh trace once a pass, and what is drawn from the window is drawn as likely as it should be."""

from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from paceline.buffer.trace import NO_DRAFT
from paceline.learner.training.batch_sampling import draw_batches, log_replay_weights, rejected_share
from paceline.learner.training.plan import TrainingPlan

DRAWS = 4000


def batches(fresh, window, **plan) -> list[list[str]]:
    drawn = draw_batches(fresh, window, TrainingPlan(**plan), torch.Generator().manual_seed(0))
    return [[trace.trace_id for trace in batch] for batch in drawn]


@pytest.fixture
def make_traces(make_trace):
    return lambda seeds, **changes: [make_trace(seed, **changes) for seed in seeds]


@pytest.mark.parametrize("weighted", [{}, {"recency_half_life_traces": 3.0, "replay_errors": 1.0}])
def test_every_pass_takes_each_fresh_trace_once_and_fills_up_from_the_window(make_traces, weighted):
    fresh, window = make_traces(range(7)), make_traces(range(100, 110))
    found = batches(fresh, window, passes=3, batch_traces=4, **weighted)
    assert [len(batch) for batch in found] == [4, 4, 4, 3] * 3
    names = Counter(name for batch in found for name in batch)
    assert {name: names[name] for name in (t.trace_id for t in fresh)} == {t.trace_id: 3 for t in fresh}
    assert sum(names[t.trace_id] for t in window) == 2 * 12
    assert all(len(set(batch)) == len(batch) for batch in found)


def test_without_a_window_a_batch_is_all_fresh(make_traces):
    assert [len(batch) for batch in batches(make_traces(range(7)), [], passes=1, batch_traces=4)] == [4, 3]


@pytest.mark.parametrize("weighted", [{}, {"recency_half_life_traces": 3.0}])
def test_a_window_smaller_than_its_share_is_drawn_whole(make_traces, weighted):
    (found,) = batches(make_traces([0]), make_traces([7, 8]), passes=1, batch_traces=8, **weighted)
    assert sorted(found[1:]) == ["trace-7", "trace-8"]


def test_a_window_drawn_evenly_is_drawn_by_the_generators_plain_permutations(make_traces):
    fresh, window = make_traces(range(4)), make_traces(range(100, 106))
    random, expected = torch.Generator().manual_seed(0), []
    for _ in range(2):
        order = torch.randperm(4, generator=random).tolist()
        for begin in (0, 2):
            drawn = torch.randperm(6, generator=random)[:2].tolist()
            expected.append([f"trace-{i}" for i in order[begin : begin + 2]] + [f"trace-{100 + i}" for i in drawn])
    assert batches(fresh, window, passes=2, batch_traces=4) == expected


def traces_with(make_trace, *counts: tuple[int, int]) -> list:
    """Traces of one round each, with so many drafts of which so many stood."""
    found = []
    for number, (drafts, stood) in enumerate(counts):
        trace = next(t for t in (make_trace(s, rounds=1) for s in range(200)) if t.rounds.accepted[0] == stood)
        drafted = trace.rounds.drafted.copy()
        drafted[0, drafts:] = NO_DRAFT
        rounds = replace(trace.rounds, drafted=drafted)
        found.append(replace(trace, trace_id=f"trace-{number}", rounds=rounds))
    return found


def test_weights_halve_with_age_and_grow_with_the_share_of_drafts_that_fell(make_trace):
    window = traces_with(make_trace, (3, 0), (3, 3), (2, 1), (0, 0))
    assert [rejected_share(trace) for trace in window] == [1.0, 0.0, 0.5, 0.0]
    old, errors = {"recency_half_life_traces": 2.0}, {"replay_errors": 3.0}
    recency, fallen = [0.5**1.5, 0.5, 0.5**0.5, 1.0], [4.0, 1.0, 2.5, 1.0]
    expected = ((old, recency), (errors, fallen), (old | errors, np.multiply(recency, fallen)))
    for plan, weights in expected:
        assert log_replay_weights(window, TrainingPlan(**plan)).exp().tolist() == pytest.approx(list(weights))
    assert log_replay_weights(window, TrainingPlan()) is None


@pytest.mark.parametrize(
    "plan", [{"recency_half_life_traces": 1.0}, {"recency_half_life_traces": 2.0, "replay_errors": 3.0}]
)
def test_draws_without_replacement_are_as_likely_as_drawing_one_after_the_other(make_trace, plan):
    window = traces_with(make_trace, (3, 0), (3, 3), (2, 1), (3, 2))
    shares = [1.0, 0.0, 0.5, 1 / 3]
    weights = [
        0.5 ** ((3 - i) / plan["recency_half_life_traces"]) * (1 + plan.get("replay_errors", 0.0) * shares[i])
        for i in range(4)
    ]
    expected = {
        (f"trace-{i}", f"trace-{j}"): weights[i] / sum(weights) * weights[j] / (sum(weights) - weights[i])
        for i, j in permutations(range(4), 2)
    }
    fresh = [make_trace(99)]
    found = batches(fresh, window, passes=DRAWS, batch_traces=3, replay_share=0.67, **plan)
    counts = Counter(tuple(batch[1:]) for batch in found)
    assert sum(expected.values()) == pytest.approx(1.0)
    for pair, likely in expected.items():
        deviation = (likely * (1 - likely) / DRAWS) ** 0.5
        assert abs(counts[pair] / DRAWS - likely) < 4.5 * deviation, pair


def test_a_window_so_old_that_its_weights_vanish_is_still_drawn_newest_first(make_trace):
    window = [replace(make_trace(1), trace_id=f"trace-{i}") for i in range(50)]
    found = batches(
        [make_trace(99)], window, passes=20, batch_traces=4, replay_share=0.75, recency_half_life_traces=1e-3
    )
    assert all(batch[1:] == ["trace-49", "trace-48", "trace-47"] for batch in found)


def test_a_rare_tenant_is_replayed_more_often_up_to_the_balance(make_trace):
    window = [make_trace(seed, tenant="flood") for seed in range(12)] + [make_trace(99, tenant="rare")]
    balanced = log_replay_weights(window, TrainingPlan(tenant_balance=4.0))
    assert balanced is not None
    assert balanced.exp().tolist() == pytest.approx([1.0] * 12 + [4.0])
    within = log_replay_weights(window, TrainingPlan(tenant_balance=20.0))
    assert within is not None
    assert within.exp().tolist() == pytest.approx([1.0] * 12 + [12.0])  # both tenants alike: no more is needed
    assert log_replay_weights(window, TrainingPlan(tenant_balance=1.0)) is None
    assert log_replay_weights(window[:12], TrainingPlan()) is None  # one tenant: nothing to balance


TARGETS = ("a", "b", "c")


def test_an_older_targets_trace_is_replayed_half_as_often_and_tenants_are_balanced_behind_that(make_trace):
    of = [("c", "flood")] * 8 + [("b", "flood")] * 4 + [("c", "rare")] * 2 + [("a", "rare")] * 4
    window = [make_trace(i, target_version=version, tenant=tenant) for i, (version, tenant) in enumerate(of)]
    weights = {"a": 0.25, "b": 0.5, "c": 1.0}
    mass = {name: sum(weights[version] for version, tenant in of if tenant == name) for name in ("flood", "rare")}
    assert mass == {"flood": 10.0, "rare": 3.0}
    expected = [weights[version] * {"flood": 1.0, "rare": 10 / 3}[tenant] for version, tenant in of]
    found = log_replay_weights(window, TrainingPlan(tenant_balance=9.0), TARGETS)
    assert found.exp().tolist() == pytest.approx(expected)
    alone = log_replay_weights(window, TrainingPlan(tenant_balance=1.0), TARGETS)
    assert alone.exp().tolist() == pytest.approx([weights[version] for version, _ in of])
    assert log_replay_weights(window[:8], TrainingPlan(), TARGETS) is None  # one tenant, all of the newest target


@pytest.mark.parametrize(("version", "weight"), [("a", 0.25), ("b", 0.5), ("c", 1.0)])
def test_a_fresh_trace_of_an_older_target_is_in_half_as_many_passes(make_trace, version, weight):
    plan, counts = TrainingPlan(passes=3), Counter[str]()
    fresh = [make_trace(i, target_version=version) for i in range(400)]
    made = list(draw_batches(fresh, [], plan, torch.Generator().manual_seed(0), TARGETS))
    for batch in made:
        counts.update(trace.trace_id for trace in batch)
    often = [counts[trace.trace_id] for trace in fresh]
    assert {count - 3 * weight for count in often} <= {-0.75, -0.5, 0.0, 0.25, 0.5}  # never off by a whole pass
    assert sum(often) / 400 == pytest.approx(3 * weight, abs=4.5 * 0.5 / 400**0.5)
    assert all(len({trace.trace_id for trace in batch}) == len(batch) <= 4 for batch in made)


def test_targets_that_are_all_of_the_newest_version_change_no_draw(make_traces):
    fresh, window, found = make_traces(range(7), target_version="c"), make_traces(range(9, 19), target_version="c"), {}
    for targets in ((), TARGETS):
        random = torch.Generator().manual_seed(0)
        drawn = draw_batches(fresh, window, TrainingPlan(), random, targets)
        found[targets] = [[trace.trace_id for trace in batch] for batch in drawn], random.get_state().tolist()
    assert found[()] == found[TARGETS]
