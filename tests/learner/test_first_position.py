"""The first position of a draft: the share of its best tokens that is accepted, against what is attainable."""

import math

import numpy as np
import pytest
from paceline.buffer.stream.trace import Sampling
from paceline.learner.training.batch import verdict_rows
from paceline.learner.training.device_memory import PartBound
from paceline.learner.training.first_position import FirstPosition, first_position

VOCAB = 5
WIDE = PartBound(9999)
SAMPLED = {"sampling": Sampling(temperature=0.7)}


@pytest.fixture
def make_traces(make_trace):
    return lambda seeds, **changes: [
        make_trace(seed, vocab=VOCAB, rounds=5, feature_dim=48, **changes) for seed in seeds
    ]


def judgement(trace, token_at):
    """The teacher's distribution over token `token_at`, from the one node whose path is committed text."""
    for r, start in enumerate(trace.rounds.starts):
        depth = token_at - int(start) - 1
        if 0 <= depth <= trace.rounds.accepted[r] and trace.sampling.temperature > 0:
            powers = np.exp(trace.rounds.teacher_logprobs[r, depth].astype(float) / trace.sampling.temperature)
            return dict(zip(trace.rounds.teacher_ids[r, depth].tolist(), powers / powers.sum(), strict=True))
    return {int(trace.tokens[token_at]): 1.0} if trace.sampling.temperature <= 0 else {}


def oracle(naive_draft, draft, traces):
    accepted, attainable = [], []
    for trace in traces:
        for row in verdict_rows(trace):
            says = judgement(trace, int(row) + 2)
            if not says:
                continue  # no teacher has judged it
            best = naive_draft(draft, trace.tokens, trace.features, int(row) + 1, 1)[0][0]
            accepted.append(says.get(best, 0.0))
            attainable.append(max(says.values()))
    return np.mean(accepted), np.mean(attainable)


@pytest.mark.parametrize("sampled", [False, True])
def test_it_is_the_mean_over_all_rows_of_what_the_teacher_says(make_traces, make_draft, naive_draft, sampled):
    draft = make_draft(3, vocab=VOCAB)
    traces = make_traces(range(17), **(SAMPLED if sampled else {}))  # more than are measured together
    accept, attainable = oracle(naive_draft, draft, traces)
    for tokens in (9999, 60, 1):
        found = first_position(draft, traces, PartBound(tokens))
        assert (found.accept, found.attainable) == (pytest.approx(accept), pytest.approx(attainable)), tokens
        assert found.share == pytest.approx(accept / attainable)
    assert (attainable < 1.0) == sampled


def test_where_nothing_was_captured_the_committed_token_stands_in(make_traces, make_draft):
    draft, bare = make_draft(3, vocab=VOCAB), make_traces(range(3), top_k=0, **SAMPLED)
    assert first_position(draft, bare, WIDE).attainable == 1.0
    mixed = first_position(draft, [*bare, *make_traces([7], **SAMPLED)], WIDE)
    assert mixed == first_position(draft, make_traces([7], **SAMPLED), WIDE)


def test_without_a_row_there_is_no_figure(make_draft):
    found = first_position(make_draft(1), [], WIDE)
    assert all(math.isnan(figure) for figure in (found.accept, found.attainable, found.share))


def test_a_perfect_draft_of_uncertain_text_is_not_cold():
    assert FirstPosition(0.4, 0.5).share == pytest.approx(0.8)
