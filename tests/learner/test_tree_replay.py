"""Replay of trees against trees that are grown one branch, row and key at a time."""

from dataclasses import replace

import numpy as np
import pytest
from naive_draft import decode_row, read_naively, rms
from paceline.buffer.errors import TraceInvalid
from paceline.buffer.stream.trace import TreeShape
from paceline.learner.judging import tree_replay
from paceline.learner.judging.replay import replay_traces
from paceline.policies.acceptance import identity, replayed_tally

SHAPES = [TreeShape(5, 4, 8), TreeShape(3, 2, 4), TreeShape(3, 3, 22), TreeShape(1, 4, 4), TreeShape(4, 5, 3)]


def naive_tree(draft, trace, root, tree):
    """The drafts that are verified in a round rooted at tokens[root], as paths of target ids."""
    weights, cache, hidden = read_naively(draft, trace.tokens, trace.features, root)
    head = draft.lm_head.weight.detach().double().numpy()
    own = [[] for _ in range(tree.topk)]  # keys and values of every place, whichever branch was there

    def children(hidden):
        logits = head @ rms(draft, weights["norm.weight"], hidden)
        chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        best = np.argsort(-chances)[: tree.topk]
        return [(chances[i], int(draft.draft_to_target_V[i])) for i in best]

    branches = [(chance, (token,), hidden) for chance, token in children(hidden)]
    every = [(score, path) for score, path, _ in branches]
    for step in range(1, tree.steps):
        grown = []
        for place, (score, path, before) in enumerate(branches):
            seen = cache + own[place]
            fed = rms(draft, weights["norm.weight"], before) if draft.config.norm_output else before
            after = decode_row(draft, weights, seen, path[-1], hidden=fed, position=root - 1 + step)
            own[place] = seen[len(cache) :]
            grown += [(score * chance, (*path, token), after) for chance, token in children(after)]
        every += [(score, path) for score, path, _ in grown]
        branches = sorted(grown, key=lambda branch: -branch[0])[: tree.topk]
    return {path for _, path in sorted(every, key=lambda draft: -draft[0])[: tree.nodes - 1]}


def naive_runs(draft, trace, tree):
    runs = [-1]
    for root in range(1, len(trace.features) + 1):
        verified, following, run = naive_tree(draft, trace, root, tree), trace.tokens[root + 1 :].tolist(), 0
        while run < len(following) and tuple(following[: run + 1]) in verified:
            run += 1
        runs.append(run)
    return runs


def treelike(make_trace, naive_draft, draft, seed, **changes):
    """A trace most of whose tokens are among the draft's best three, so that many branches are followed."""
    trace = make_trace(seed, feature_dim=48, **changes)
    tokens, rng = trace.tokens.copy(), np.random.default_rng(seed)
    for root in range(1, len(tokens) - 1):
        _, (logits,) = naive_draft(draft, tokens, trace.features, root, 1)
        if root % 6:
            tokens[root + 1] = draft.draft_to_target_V[np.argsort(-logits)[rng.integers(3)]]
    rounds = make_trace(seed, rounds=0, steps=5).rounds
    return replace(trace, tokens=tokens, rounds=rounds, is_tree=True)


@pytest.mark.parametrize("tree", SHAPES)
@pytest.mark.parametrize("more", [{}, {"draft_ids": [1, 2, 5, 7, 11, 12]}, {"norm_output": True}])
def test_replay_equals_trees_that_are_grown_branch_by_branch(make_trace, make_draft, naive_draft, tree, more):
    draft = make_draft(3, vocab=20, **more)
    traces = [
        treelike(make_trace, naive_draft, draft, seed, rounds=seed, context_len=3, vocab=20, tree=tree)
        for seed in (1, 3, 6)
    ]
    runs = replay_traces(draft, traces, 2)
    for trace, run in zip(traces, runs, strict=True):
        assert run.tolist() == naive_runs(draft, trace, tree)
    assert set(np.concatenate(runs).tolist()) >= {-1, 0, 1}
    assert np.concatenate(runs).max() > 1 or min(tree.steps, tree.nodes - 2) == 1


def test_shapes_chains_and_blocks_of_any_size_stand_side_by_side(make_trace, make_draft, naive_draft, monkeypatch):
    draft = make_draft(3, vocab=20)
    traces = [
        treelike(make_trace, naive_draft, draft, seed, rounds=seed, vocab=20, tree=(*SHAPES, None)[seed % 6])
        for seed in range(1, 13)
    ]
    alone = [replay_traces(draft, [trace], 3)[0].tolist() for trace in traces]
    assert [run.tolist() for run in replay_traces(draft, traces, 3)] == alone
    monkeypatch.setattr(tree_replay, "_SCORES_PER_BLOCK", 1)
    assert [run.tolist() for run in replay_traces(draft, traces, 3)] == alone
    for trace, run in zip(traces, replay_traces(draft, traces, 3, only_verdicts=True), strict=True):
        assert replayed_tally(trace, run) == replayed_tally(trace, np.array(alone[traces.index(trace)]))


def test_of_a_tree_a_round_is_equal_only_if_no_more_was_accepted_than_served(make_trace, make_draft):
    trace = make_trace(2, rounds=6, tree=SHAPES[1], is_tree=True)
    served = np.full(len(trace.tokens), -1, np.int32)
    served[trace.rounds.starts] = trace.visible_accepted()
    assert identity(trace, served) == (6, 6)
    more = served + (served == 3)  # beyond all that was kept of the round
    assert (more != served).any()
    assert identity(trace, more)[0] < 6 == identity(replace(trace, tree=None), more)[0]


@pytest.mark.parametrize("shape", [(0, 4, 8), (5, 1, 8), (5, 257, 8), (5, 4, 1), (5, 4, 70), (1, 4, 6)])
def test_shapes_that_sglang_would_not_start_with_are_refused(shape):
    with pytest.raises(TraceInvalid, match="tree: got TreeShape"):
        TreeShape(*shape)
