"""Traces as tensors: which rows are scored, and which verified node judged which token."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from paceline.buffer.errors import ConfigError
from paceline.buffer.stream.feature_rows import as_float32
from paceline.buffer.stream.trace import FeatureDtype, Sampling, VerdictRule
from paceline.learner.training.batch import (
    collate,
    context_rows,
    draftable_rows,
    summed_weights,
    teacher_nodes,
    verdict_rows,
)
from paceline.learner.training.first_position import judged_rows

CPU = torch.device("cpu")


def test_every_row_before_a_committed_token_is_scored_and_not_only_the_served_roots(make_trace):
    trace = make_trace(1, context_len=8)
    rows = verdict_rows(trace).tolist()
    assert rows == [p for p in range(len(trace.features)) if trace.context_len <= p + 2 < len(trace.tokens)]
    assert {int(root) - 1 for root in trace.rounds.starts} < set(rows)
    assert draftable_rows(trace) == len(trace.tokens) - 1
    assert verdict_rows(make_trace(1, context_len=0)).tolist()[0] == 0
    assert verdict_rows(make_trace(1, feature_dim=0)).tolist() == []


@pytest.mark.parametrize(("context_len", "rounds"), [(0, 2), (1, 2), (2, 2), (8, 4), (30, 2)])
def test_rows_of_the_context_come_before_those_with_a_verdict_and_are_no_more(make_trace, context_len, rounds):
    trace = make_trace(1, context_len=context_len, rounds=rounds)
    judged = verdict_rows(trace).tolist()
    before = [p for p in range(len(trace.features)) if p + 2 < trace.context_len]
    assert context_rows(trace).tolist() == before[-len(judged) :]
    other = make_trace(2, context_len=5)
    batch = collate([trace, other], CPU, with_context=True)
    for b, each in enumerate((trace, other)):
        context, rows = context_rows(each).tolist(), batch.rows_BQ[b][batch.row_mask_BQ[b]].tolist()
        assert rows == context + verdict_rows(each).tolist()
        assert batch.context_BQ[b].nonzero().flatten().tolist() == list(range(len(context)))
    weights = torch.where(batch.context_BQ, 0.25, 1.0)[batch.row_mask_BQ]
    assert summed_weights([trace, other], 0.25) == pytest.approx(float(weights.sum()))
    assert summed_weights([trace], 0.0) == len(judged)
    assert collate([trace], CPU).context_BQ is None


def test_a_trace_without_a_verdict_has_no_context_to_train_on(make_trace):
    assert context_rows(make_trace(1, feature_dim=0)).tolist() == []


def test_scored_mask_keeps_predictions_inside_their_own_trace(make_trace):
    traces = [make_trace(1, rounds=2), make_trace(2, rounds=6)]
    batch = collate(traces, CPU)
    mask, predicted = batch.scored_mask(3), batch.predicted(3)
    for b, trace in enumerate(traces):
        pairs = {(int(batch.rows_BQ[b, q]), int(predicted[b, q, s])) for q, s in mask[b].nonzero().tolist()}
        length = len(trace.tokens)
        assert pairs == {(p, p + 2 + k) for p in verdict_rows(trace) for k in range(3) if p + 2 + k < length}
        assert batch.tokens_BT[b, :length].tolist() == trace.tokens.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_each_committed_token_is_judged_by_the_one_node_whose_path_it_follows(make_trace, seed):
    trace = make_trace(seed, rounds=5)
    rounds, nodes = trace.rounds, teacher_nodes(trace)
    expected = np.full(len(trace.tokens), -1)
    for r, start in enumerate(rounds.starts):
        for n in range(rounds.drafted.shape[1] + 1):
            path = [*trace.tokens[: start + 1].tolist(), *rounds.drafted[r, :n].tolist()]
            if path == trace.tokens[: len(path)].tolist() and len(path) < len(trace.tokens) and n <= rounds.accepted[r]:
                assert expected[len(path)] == -1
                expected[len(path)] = r * 4 + n
    assert nodes.tolist() == expected.tolist()
    assert np.flatnonzero(nodes >= 0).tolist() == list(range(int(rounds.starts[0]) + 1, len(trace.tokens)))


def test_a_cut_last_round_judges_only_tokens_that_are_there(make_trace):
    whole = next(trace for trace in (make_trace(s) for s in range(50)) if trace.rounds.accepted[-1] == 3)
    cut = replace(whole, tokens=whole.tokens[:-2], features=whole.features[:-2])
    assert teacher_nodes(cut).tolist() == teacher_nodes(whole)[:-2].tolist()


def test_soft_labels_are_the_teachers_at_the_requests_temperature(make_trace):
    trace = make_trace(2, top_k=4, sampling=Sampling(temperature=0.5))
    batch, nodes = collate([trace], CPU, soft=True), teacher_nodes(trace)
    for position, node in enumerate(nodes):
        ids, probs = batch.teacher_ids_BTK[0, position].tolist(), batch.teacher_probs_BTK[0, position].tolist()
        if node < 0:
            assert (ids[0], probs) == (trace.tokens[position], [1.0, 0.0, 0.0, 0.0])
            continue
        weights = np.exp(trace.rounds.teacher_logprobs[node // 4, node % 4].astype(float) / 0.5)
        assert ids == trace.rounds.teacher_ids[node // 4, node % 4].tolist()
        assert probs == pytest.approx((weights / weights.sum()).tolist(), rel=1e-5)


def test_greedy_requests_and_traces_without_logits_are_labelled_with_the_committed_token(make_trace):
    traces = [make_trace(1), make_trace(2, top_k=0, sampling=Sampling(temperature=0.5))]
    batch = collate(traces, CPU, soft=True)
    assert batch.teacher_probs_BTK.sum(-1).unique().tolist() == [1.0]
    assert batch.teacher_probs_BTK[..., 0].unique().tolist() == [1.0]
    assert batch.teacher_ids_BTK[..., 0].tolist() == batch.tokens_BT.tolist()


def test_a_token_whose_node_has_no_known_teacher_is_labelled_with_itself(make_trace):
    whole = make_trace(2, top_k=4, sampling=Sampling(temperature=0.5))
    known = whole.rounds.teacher_logprobs.copy()
    known[1] = -np.inf  # the second round's teacher was not captured
    trace = replace(whole, rounds=replace(whole.rounds, teacher_logprobs=known))
    start, count = int(trace.rounds.starts[1]), int(trace.rounds.accepted[1]) + 1
    unjudged = list(range(start + 1, start + 1 + count))
    nodes, batch, before = teacher_nodes(trace), collate([trace], CPU, soft=True), collate([whole], CPU, soft=True)
    assert np.flatnonzero(nodes != teacher_nodes(whole)).tolist() == unjudged
    assert set(nodes[unjudged]) == {-1}
    assert batch.teacher_ids_BTK[0, unjudged, 0].tolist() == trace.tokens[unjudged].tolist()
    assert batch.teacher_probs_BTK[0, unjudged].tolist() == [[1.0, 0.0, 0.0, 0.0]] * count
    others = [position for position in range(len(trace.tokens)) if position not in unjudged]
    assert batch.teacher_probs_BTK[0, others].tolist() == before.teacher_probs_BTK[0, others].tolist()
    wanted = [int(row) + 2 not in unjudged and nodes[row + 2] >= 0 for row in verdict_rows(trace)]
    assert judged_rows(trace).tolist() == wanted


def test_a_batch_knows_which_traces_were_judged_under_rejection(make_trace):
    traces = [make_trace(1), make_trace(2, verdict_rule=VerdictRule.REJECTION)]
    assert collate(traces, CPU).rejection_B.tolist() == [False, True]


def test_features_arrive_as_the_numbers_they_stand_for(make_trace):
    exact = np.array([[1.5, -2.25, 0.0, 3.140625]], np.float32)
    bits = torch.tensor(exact).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert as_float32(bits, FeatureDtype.BFLOAT16).tolist() == exact.tolist()
    assert as_float32(exact.astype(np.float16), FeatureDtype.FLOAT16).tolist() == exact.tolist()
    stored = make_trace(1, feature_dim=4)
    bfloat16 = replace(stored, features=np.repeat(bits, len(stored.features), 0), feature_dtype=FeatureDtype.BFLOAT16)
    assert collate([stored, bfloat16], CPU).features_BFD[1, 0].tolist() == exact[0].tolist()


def test_feature_widths_are_not_mixed(make_trace):
    with pytest.raises(ConfigError, match=r"got widths \[6, 9\]"):
        collate([make_trace(1), make_trace(2, feature_dim=9)], CPU)
