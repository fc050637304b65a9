"""Batches: every fresh trace once a pass, and replayed traces drawn as likely as they should be."""

from collections import Counter
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from paceline.learner.training.batch_sampling import draw_batches, log_replay_weights
from paceline.learner.training.plan import Recipe

DRAWS = 4000
#: How likely each of ten replayed traces is drawn.
UNEVEN = torch.tensor([0.5, 4.0, 1.0, 2.0, 1.0, 1.0, 3.0, 1.0, 1.0, 0.1], dtype=torch.float64).log()


def batches(fresh, replay, passes, weights_N=None, **recipe) -> list[list[str]]:
    random = torch.Generator().manual_seed(0)
    drawn = draw_batches(fresh, replay, passes=passes, recipe=Recipe(**recipe), random=random, log_weights_N=weights_N)
    return [[trace.trace_id for trace in batch] for batch in drawn]


@pytest.fixture
def make_traces(make_trace):
    return lambda seeds, **changes: [make_trace(seed, **changes) for seed in seeds]


@pytest.mark.parametrize("weights_N", [None, UNEVEN])
def test_every_pass_takes_each_fresh_trace_once_and_fills_up_from_the_replay_buffer(make_traces, weights_N):
    fresh, replay = make_traces(range(7)), make_traces(range(100, 110))
    found = batches(fresh, replay, 3, weights_N, batch_traces=4)
    assert [len(batch) for batch in found] == [4, 4, 4, 3] * 3
    names = Counter(name for batch in found for name in batch)
    assert {name: names[name] for name in (t.trace_id for t in fresh)} == {t.trace_id: 3 for t in fresh}
    assert sum(names[t.trace_id] for t in replay) == 2 * 12
    assert all(len(set(batch)) == len(batch) for batch in found)


def test_with_nothing_to_replay_a_batch_is_all_fresh(make_traces):
    assert [len(batch) for batch in batches(make_traces(range(7)), [], 1, batch_traces=4)] == [4, 3]


@pytest.mark.parametrize("weights_N", [None, UNEVEN[:2]])
def test_a_replay_buffer_smaller_than_its_share_is_drawn_whole(make_traces, weights_N):
    (found,) = batches(make_traces([0]), make_traces([7, 8]), 1, weights_N, batch_traces=8)
    assert sorted(found[1:]) == ["trace-7", "trace-8"]


def test_a_replay_buffer_drawn_evenly_is_drawn_by_the_generators_plain_permutations(make_traces):
    fresh, replay = make_traces(range(4)), make_traces(range(100, 106))
    random, expected = torch.Generator().manual_seed(0), []
    for _ in range(2):
        order = torch.randperm(4, generator=random).tolist()
        for begin in (0, 2):
            drawn = torch.randperm(6, generator=random)[:2].tolist()
            expected.append([f"trace-{i}" for i in order[begin : begin + 2]] + [f"trace-{100 + i}" for i in drawn])
    assert batches(fresh, replay, 2, batch_traces=4) == expected


def test_draws_without_replacement_are_as_likely_as_drawing_one_after_the_other(make_traces):
    weights = [4.0, 1.0, 2.5, 0.5]
    expected = {
        (f"trace-{i}", f"trace-{j}"): weights[i] / sum(weights) * weights[j] / (sum(weights) - weights[i])
        for i, j in permutations(range(4), 2)
    }
    log_weights = torch.tensor(weights, dtype=torch.float64).log()
    found = batches(make_traces([99]), make_traces(range(4)), DRAWS, log_weights, batch_traces=3, replay_share=0.67)
    counts = Counter(tuple(batch[1:]) for batch in found)
    assert sum(expected.values()) == pytest.approx(1.0)
    for pair, likely in expected.items():
        deviation = (likely * (1 - likely) / DRAWS) ** 0.5
        assert abs(counts[pair] / DRAWS - likely) < 4.5 * deviation, pair


def test_weights_too_small_for_a_float_still_draw_the_likeliest_first(make_trace):
    replay = [replace(make_trace(1), trace_id=f"trace-{i}") for i in range(50)]
    log_weights = -1000.0 * torch.arange(50, dtype=torch.float64).flip(0)
    found = batches([make_trace(99)], replay, 20, log_weights, batch_traces=4, replay_share=0.75)
    assert all(batch[1:] == ["trace-49", "trace-48", "trace-47"] for batch in found)


def test_a_rare_tenant_is_replayed_more_often_up_to_the_balance(make_trace):
    replay = [make_trace(seed, tenant="flood") for seed in range(12)] + [make_trace(99, tenant="rare")]
    balanced = log_replay_weights(replay)
    assert balanced is not None
    assert balanced.exp().tolist() == pytest.approx([1.0] * 12 + [4.0])
    within = log_replay_weights(replay, tenant_balance=20.0)
    assert within is not None
    assert within.exp().tolist() == pytest.approx([1.0] * 12 + [12.0])  # both tenants alike: no more is needed
    assert log_replay_weights(replay, tenant_balance=1.0) is None
    assert log_replay_weights(replay[:12]) is None  # one tenant: nothing to balance


TARGETS = ("a", "b", "c")


@pytest.mark.guarantee("labels-only-count")
def test_a_label_changes_no_weight(make_trace):
    labelled = [make_trace(i, label="rare" if i == 5 else "flood") for i in range(6)]
    assert log_replay_weights(labelled) is None
    tenants = [make_trace(i, tenant="rare" if i == 5 else "flood") for i in range(6)]
    both = [replace(trace, label=f"label-{i}") for i, trace in enumerate(tenants)]
    assert torch.equal(log_replay_weights(both), log_replay_weights(tenants))


def test_an_older_targets_trace_is_replayed_half_as_often_and_tenants_are_balanced_after_that(make_trace):
    of = [("c", "flood")] * 8 + [("b", "flood")] * 4 + [("c", "rare")] * 2 + [("a", "rare")] * 4
    replay = [make_trace(i, target_version=version, tenant=tenant) for i, (version, tenant) in enumerate(of)]
    weights = {"a": 0.25, "b": 0.5, "c": 1.0}
    mass = {name: sum(weights[version] for version, tenant in of if tenant == name) for name in ("flood", "rare")}
    assert mass == {"flood": 10.0, "rare": 3.0}
    expected = [weights[version] * {"flood": 1.0, "rare": 10 / 3}[tenant] for version, tenant in of]
    found = log_replay_weights(replay, TARGETS, tenant_balance=9.0)
    assert found.exp().tolist() == pytest.approx(expected)
    alone = log_replay_weights(replay, TARGETS, tenant_balance=1.0)
    assert alone.exp().tolist() == pytest.approx([weights[version] for version, _ in of])
    assert log_replay_weights(replay[:8], TARGETS) is None  # one tenant, all of the newest target


@pytest.mark.parametrize(("version", "weight"), [("a", 0.25), ("b", 0.5), ("c", 1.0)])
def test_a_fresh_trace_of_an_older_target_is_in_half_as_many_passes(make_trace, version, weight):
    counts = Counter[str]()
    fresh = [make_trace(i, target_version=version) for i in range(400)]
    made = list(
        draw_batches(fresh, [], passes=3, recipe=Recipe(), random=torch.Generator().manual_seed(0), targets=TARGETS)
    )
    for batch in made:
        counts.update(trace.trace_id for trace in batch)
    often = [counts[trace.trace_id] for trace in fresh]
    assert {count - 3 * weight for count in often} <= {-0.75, -0.5, 0.0, 0.25, 0.5}  # never off by a whole pass
    assert sum(often) / 400 == pytest.approx(3 * weight, abs=4.5 * 0.5 / 400**0.5)
    assert all(len({trace.trace_id for trace in batch}) == len(batch) <= 4 for batch in made)


def test_targets_that_are_all_of_the_newest_version_change_no_draw(make_traces):
    fresh, replay, found = make_traces(range(7), target_version="c"), make_traces(range(9, 19), target_version="c"), {}
    for targets in ((), TARGETS):
        random = torch.Generator().manual_seed(0)
        drawn = draw_batches(fresh, replay, passes=4, recipe=Recipe(), random=random, targets=targets)
        found[targets] = [[trace.trace_id for trace in batch] for batch in drawn], random.get_state().tolist()
    assert found[()] == found[TARGETS]
