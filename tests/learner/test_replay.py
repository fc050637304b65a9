"""Replay against serving the recorded text with a decoder that processes one key at a time."""

from dataclasses import replace

import numpy as np
import pytest
from paceline.buffer.stream.trace import Sampling
from paceline.learner.judging.replay import replay_logprobs, replay_traces
from paceline.learner.training.batch import verdict_rows
from paceline.policies.acceptance import identity, replayed_tally, served_tally

STEPS = 3


def naive_runs(naive_draft, draft, trace, steps: int) -> list[int]:
    runs = []
    for root in range(len(trace.tokens)):
        if root == 0 or root > len(trace.features):
            runs.append(-1)
            continue
        drafted, _ = naive_draft(draft, trace.tokens, trace.features, root, steps)
        following = trace.tokens[root + 1 :].tolist()
        run = 0
        while run < min(steps, len(following)) and drafted[run] == following[run]:
            run += 1
        runs.append(run)
    return runs


def rewritten_by(naive_draft, draft, trace):
    """The trace with most of its committed text replaced by what the draft would say, so that runs are long."""
    tokens = trace.tokens.copy()
    for root in range(trace.context_len, len(tokens) - 1):
        drafted, _ = naive_draft(draft, tokens, trace.features, root, 1)
        if root % 5:
            tokens[root + 1] = drafted[0]
    return replace(trace, tokens=tokens, rounds=no_rounds(trace))


def no_rounds(trace):
    empty = {name: getattr(trace.rounds, name)[:0] for name in ("starts", "drafted", "accepted")}
    return replace(
        trace.rounds,
        **empty,
        teacher_ids=trace.rounds.teacher_ids[:0],
        teacher_logprobs=trace.rounds.teacher_logprobs[:0],
    )


def test_replay_equals_naive_serving_on_traces_of_different_lengths(make_trace, make_draft, naive_draft):
    draft = make_draft(3, vocab=8)
    random = [make_trace(s, rounds=s, context_len=1 + s, feature_dim=48, vocab=8) for s in range(1, 5)]
    traces = [*random, *(rewritten_by(naive_draft, draft, trace) for trace in random)]
    runs = replay_traces(draft, traces, STEPS)
    for trace, run in zip(traces, runs, strict=True):
        assert run.dtype == np.int32
        assert run.tolist() == naive_runs(naive_draft, draft, trace, STEPS)
    assert set(np.concatenate(runs).tolist()) == {-1, 0, 1, 2, 3}


def test_replay_of_verdicts_alone_is_the_same_wherever_a_round_could_have_started(make_trace, make_draft):
    draft, whole = make_draft(3, vocab=4), make_trace(5, rounds=6, context_len=9, feature_dim=48, vocab=4)
    traces = [make_trace(s, rounds=s, context_len=1 + s, feature_dim=48, vocab=4) for s in range(1, 12)]
    traces += [whole, replace(whole, features=whole.features[: int(whole.rounds.starts[-1])])]
    traces.append(replace(whole, rounds=no_rounds(whole)))
    every = replay_traces(draft, traces, STEPS)
    for trace, run, full in zip(traces, replay_traces(draft, traces, STEPS, only_verdicts=True), every, strict=True):
        first, last = max(trace.context_len - 1, 1), len(trace.tokens) - 2
        assert run[first : last + 1].tolist() == full[first : last + 1].tolist()
        assert set(np.delete(run, range(first, last + 1)).tolist()) == {-1}
        assert replayed_tally(trace, run) == replayed_tally(trace, full)


def test_replay_equals_naive_serving_with_a_pruned_vocabulary(make_trace, make_draft, naive_draft):
    draft = make_draft(4, vocab=8, draft_ids=[1, 2, 5, 7])
    trace = rewritten_by(naive_draft, draft, make_trace(5, rounds=5, feature_dim=48, vocab=8))
    (runs,) = replay_traces(draft, [trace], 4)
    assert runs.tolist() == naive_runs(naive_draft, draft, trace, 4)
    assert runs.max() == 3


def test_replay_of_a_trace_does_not_depend_on_the_others(make_trace, make_draft):
    draft = make_draft(3, vocab=4)
    traces = [make_trace(s, rounds=1 + s % 9, feature_dim=48, vocab=4) for s in range(40)]
    together = replay_traces(draft, traces, STEPS)
    for trace, runs in zip(traces, together, strict=True):
        assert runs.tolist() == replay_traces(draft, [trace], STEPS)[0].tolist()


def test_roots_without_features_have_no_run(make_trace, make_draft):
    draft, whole = make_draft(3), make_trace(1, feature_dim=48)
    last_root = int(whole.rounds.starts[-1])
    short = replace(whole, features=whole.features[:last_root])
    absent = make_trace(2, feature_dim=0)
    full = replace(whole, features=np.pad(whole.features, ((0, 1), (0, 0))))
    runs_short, runs_absent, runs_full = replay_traces(draft, [short, absent, full], STEPS)
    assert np.flatnonzero(runs_short < 0).tolist() == [0, *range(last_root + 1, len(whole.tokens))]
    assert runs_absent.tolist() == [-1] * len(absent.tokens)
    assert np.flatnonzero(runs_full < 0).tolist() == [0]
    assert runs_full[-1] == 0  # nothing follows the last token
    assert replay_traces(draft, [], STEPS) == []


def test_replay_of_the_serving_draft_gives_the_served_lengths(make_trace, make_draft, naive_draft):
    draft = make_draft(3, vocab=6)
    trace = serve(naive_draft, draft, make_trace(7, rounds=12, context_len=4, feature_dim=48, vocab=6))
    (runs,) = replay_traces(draft, [trace], STEPS)
    assert identity(trace, runs) == (len(trace.rounds), len(trace.rounds))
    assert replayed_tally(trace, runs).accepted == int(trace.visible_accepted().sum()) > 0
    assert replayed_tally(trace, runs).rounds == served_tally(trace).rounds
    (other,) = replay_traces(make_draft(4, vocab=6), [trace], STEPS)
    equal, compared = identity(trace, other)
    assert equal < compared == len(trace.rounds)


def serve(naive_draft, draft, trace):
    """Verify this draft's own proposals along the trace's text, as a greedy server does."""
    starts, drafted, accepted, root = [], [], [], trace.context_len
    while root <= len(trace.tokens) - 2:
        proposal, _ = naive_draft(draft, trace.tokens, trace.features, root, STEPS)
        matched = 0
        while (
            matched < STEPS
            and root + 1 + matched < len(trace.tokens)
            and proposal[matched] == trace.tokens[root + 1 + matched]
        ):
            matched += 1
        starts.append(root)
        drafted.append(proposal)
        accepted.append(matched)
        root += matched + 1
    nodes = (len(starts), STEPS + 1, 0)
    rounds = replace(
        trace.rounds,
        starts=np.array(starts, np.int32),
        drafted=np.array(drafted, np.int32),
        accepted=np.array(accepted, np.int32),
        teacher_ids=np.zeros(nodes, np.int32),
        teacher_logprobs=np.zeros(nodes, np.float16),
    )
    return replace(trace, rounds=rounds)


def naive_logprobs(naive_draft, draft, trace, steps: int) -> np.ndarray:
    """Log-softmax of the naive decoder's logits over the temperature, at the committed tokens it was fed."""
    to_draft = {token: i for i, token in enumerate(draft.draft_to_target_V.tolist())}
    found = np.full((len(trace.tokens), steps), np.nan)
    for root in (verdict_rows(trace) + 1).tolist():
        following = trace.tokens[root + 1 : root + 1 + steps].tolist()
        _, logits = naive_draft(draft, trace.tokens, trace.features, root, len(following), fed=following)
        for step, token in enumerate(following):
            scaled = logits[step] / trace.sampling.temperature
            norm = np.log(np.exp(scaled).sum())
            found[root, step] = scaled[to_draft[token]] - norm if token in to_draft else -np.inf
    return found


@pytest.mark.parametrize("draft_ids", [None, [1, 2, 5, 7]])
def test_logprobs_of_committed_tokens_equal_those_of_naive_serving(make_trace, make_draft, naive_draft, draft_ids):
    draft = make_draft(3, vocab=8, draft_ids=draft_ids)
    traces = [
        make_trace(s, rounds=s, context_len=2 * s, feature_dim=48, vocab=8, sampling=Sampling(temperature))
        for s, temperature in ((1, 0.5), (2, 1.0), (3, 2.0), (9, 0.7))
    ]
    for trace, found in zip(traces, replay_logprobs(draft, traces, STEPS), strict=True):
        assert found.dtype == np.float32
        expected = naive_logprobs(naive_draft, draft, trace, STEPS)
        np.testing.assert_allclose(found, expected, atol=1e-4)
        first = trace.context_len - 1  # the root before the first committed token
        assert np.isnan(found[:first]).all()
        assert not np.isnan(found[first : len(trace.tokens) - STEPS]).any()
        assert np.isneginf(found).any() == (draft_ids is not None)


def test_logprobs_of_a_trace_do_not_depend_on_the_others(make_trace, make_draft):
    draft = make_draft(3, vocab=8)
    traces = [
        make_trace(s, rounds=1 + s % 9, feature_dim=48 * (s != 4), vocab=8, sampling=Sampling(0.5 + s / 20))
        for s in range(20)
    ]
    together = replay_logprobs(draft, traces, STEPS)
    assert np.isnan(together[4]).all()  # no feature to draft from
    for trace, found in zip(traces, together, strict=True):
        np.testing.assert_allclose(found, replay_logprobs(draft, [trace], STEPS)[0], atol=1e-5)
    assert replay_logprobs(draft, [], STEPS) == []


def test_the_likeliest_tokens_of_both_replays_are_the_same(make_trace, make_draft):
    """Nearly cold, a draft draws its best token alone: the chances are those of being equal."""
    draft, traces = make_draft(3, vocab=6), [make_trace(s, rounds=6, feature_dim=48, vocab=6) for s in range(4)]
    cold = [replace(trace, sampling=Sampling(1e-4)) for trace in traces]
    for trace, runs, logq in zip(
        traces, replay_traces(draft, traces, STEPS), replay_logprobs(draft, cold, STEPS), strict=True
    ):
        follows = np.exp(np.nan_to_num(logq, nan=-np.inf)).cumprod(1).sum(1)
        judged = verdict_rows(trace) + 1
        np.testing.assert_allclose(follows[judged], runs[judged], atol=1e-3)
