"""What an ablation prefers to replay: newer traces, or those whose drafts were rejected."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from paceline.benchmarks.learning.training.plan import BenchPlan
from paceline.benchmarks.learning.training.replay_weights import favoured, rejected_share
from paceline.benchmarks.learning.training.trainer import BenchTrainer
from paceline.buffer.trace import NO_DRAFT


def traces_with(make_trace, *counts: tuple[int, int]) -> list:
    """Traces of one round each, with so many drafts of which so many were accepted."""
    found = []
    for number, (drafts, accepted) in enumerate(counts):
        trace = next(t for t in (make_trace(s, rounds=1) for s in range(200)) if t.rounds.accepted[0] == accepted)
        drafted = trace.rounds.drafted.copy()
        drafted[0, drafts:] = NO_DRAFT
        rounds = replace(trace.rounds, drafted=drafted)
        found.append(replace(trace, trace_id=f"trace-{number}", rounds=rounds))
    return found


def test_weights_halve_with_age_and_grow_with_the_share_of_rejected_drafts(make_trace):
    replay = traces_with(make_trace, (3, 0), (3, 3), (2, 1), (0, 0))
    assert [rejected_share(trace) for trace in replay] == [1.0, 0.0, 0.5, 0.0]
    old, errors = {"recency_half_life_traces": 2.0}, {"replay_errors": 3.0}
    recency, rejected = [0.5**1.5, 0.5, 0.5**0.5, 1.0], [4.0, 1.0, 2.5, 1.0]
    expected = ((old, recency), (errors, rejected), (old | errors, np.multiply(recency, rejected)))
    even = torch.zeros(4, dtype=torch.float64)
    for plan, weights in expected:
        assert favoured(replay, even, BenchPlan(**plan)).exp().tolist() == pytest.approx(list(weights))


def test_a_preference_is_on_top_of_the_balance_of_tenants(make_trace, make_draft):
    replay = [make_trace(i, tenant="rare" if i == 5 else "flood") for i in range(6)]
    plain = BenchTrainer(make_draft(1), BenchPlan())._replay_log_weights(replay)
    recent = BenchTrainer(make_draft(1), BenchPlan(recency_half_life_traces=1.0))._replay_log_weights(replay)
    assert plain.exp().tolist() == pytest.approx([1.0] * 5 + [4.0])
    assert (recent - plain).exp().tolist() == pytest.approx([0.5**age for age in range(5, -1, -1)])
    assert BenchTrainer(make_draft(1), BenchPlan())._replay_log_weights(replay[:5]) is None
