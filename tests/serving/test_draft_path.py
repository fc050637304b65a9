"""What capture keeps of a tree, against a walk along it node by node; and the chances of committed tokens."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.buffer.stream.trace import NO_DRAFT, TreeShape
from paceline.serving.capture.committed_chances import committed_logprobs
from paceline.serving.capture.draft_path import tokens_on, tree_of, tree_path

WIDTH, DEPTH = 7, 4


def random_tree(rng):
    """Parent of every node but the root, no path longer than DEPTH; nodes in the order SGLang gives them."""
    depth, parents = [0], [-1]
    for node in range(1, WIDTH):
        parent = rng.choice([n for n in range(node) if depth[n] < DEPTH - 1])
        parents.append(parent)
        depth.append(depth[parent] + 1)
    return parents


def accepted_path(rng, parents):
    """A path from the root along children, of any length."""
    path = [0]
    while rng.random() < 0.7:
        children = [n for n in range(WIDTH) if parents[n] == path[-1]]
        if not children:
            break
        path.append(rng.choice(children))
    return path


@given(seed=st.integers(0, 10**6), batch=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_of_a_tree_the_accepted_path_and_the_first_rejected_child_are_kept(seed, batch):
    rng = random.Random(seed)
    trees = [random_tree(rng) for _ in range(batch)]
    paths = [accepted_path(rng, parents) for parents in trees]
    tokens = [[rng.randrange(1000) for _ in range(WIDTH)] for _ in range(batch)]
    first_child = [
        [next((n for n in range(WIDTH) if parents[n] == node), -1) for node in range(WIDTH)] for parents in trees
    ]
    index = [[b * WIDTH + n for n in path] + [-1] * (DEPTH - len(path)) for b, path in enumerate(paths)]
    verify_input = SimpleNamespace(
        draft_token_num=WIDTH, tree_topk=3, retrieve_next_token=torch.tensor(first_child), draft_token=None
    )
    lens = torch.tensor([len(path) for path in paths], dtype=torch.int32)
    nodes = tree_path(lens, torch.tensor(index, dtype=torch.int32), verify_input)
    kept = tokens_on(nodes, torch.tensor(tokens).reshape(-1))
    assert tree_of(torch.tensor(index), verify_input) == TreeShape(DEPTH - 1, 3, WIDTH)
    assert nodes.shape == kept.shape == (batch, DEPTH)
    for b, path in enumerate(paths):
        child = first_child[b][path[-1]]
        wanted = [*path, *([child] if child >= 0 and len(path) < DEPTH else [])]
        fill = [-1] * (DEPTH - len(wanted))
        assert nodes[b].tolist() == [b * WIDTH + n for n in wanted] + fill
        assert kept[b].tolist() == [tokens[b][n] for n in wanted] + fill
    assert NO_DRAFT == -1


@given(seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_places_that_ngram_had_no_draft_for_are_no_drafts_unless_accepted(seed):
    rng = random.Random(seed)
    found = rng.choice([0, 0, 1, 4])  # drafts, each after the one before it; leaves of token 0 below the root follow
    tokens = [7, *(rng.randrange(1, 1000) for _ in range(found)), *[0] * (WIDTH - 1 - found)]
    parents = [-1, *range(found), *[0] * (WIDTH - 1 - found)]
    path = rng.choice([[*range(rng.randint(0, found) + 1)], [0, WIDTH - 1]])  # the target agrees with some, or says 0
    child = [next((n for n in range(WIDTH) if parents[n] == node), -1) for node in range(WIDTH)]
    verify_input = SimpleNamespace(
        draft_token_num=WIDTH, tree_topk=-1, retrieve_next_token=torch.tensor([child]), draft_token=torch.tensor(tokens)
    )
    index = torch.tensor([path + [-1] * (WIDTH - len(path))])
    nodes = tree_path(torch.tensor([len(path)]), index, verify_input)
    rejected = [child[path[-1]]] if child[path[-1]] >= 0 and found else []
    wanted = [tokens[node] for node in [*path, *rejected]]
    assert tokens_on(nodes, verify_input.draft_token)[0].tolist() == wanted + [-1] * (WIDTH - len(wanted))


def chance(logits, temperature, token):
    weights = np.exp((logits - logits.max()) / temperature)
    return float(np.log(weights[token] / weights.sum()))


@pytest.mark.parametrize("with_draft", [True, False])
def test_the_chances_of_committed_tokens_are_those_of_target_and_draft_at_the_requests_temperature(with_draft):
    rng = np.random.default_rng(0)
    batch, width, vocab = 3, 4, 11
    logits = rng.normal(size=(batch * width, vocab)).astype(np.float32)
    draft = rng.dirichlet(np.ones(vocab), size=(batch, width - 1)).astype(np.float32)
    committed, lens = rng.integers(0, vocab, (batch, width)), [4, 1, 2]
    temperatures = [0.5, 1.0, 2.0]
    info = SimpleNamespace(
        temperatures=torch.tensor(temperatures).view(-1, 1), top_ps=torch.tensor([1.0, 1.0, 0.9]),
        top_ks=torch.tensor([1 << 30, 1 << 30, 1 << 30]),
    )  # fmt: skip
    result = torch.tensor(committed.reshape(-1), dtype=torch.int32), torch.tensor(lens, dtype=torch.int32), None
    verify_input = SimpleNamespace(draft_token_num=width, draft_probs=torch.tensor(draft) if with_draft else None)
    found = committed_logprobs(result, verify_input, SimpleNamespace(sampling_info=info), torch.tensor(logits))
    assert (found.shape, found.dtype) == ((batch, width, 2), torch.float32)
    wanted = np.full((batch, width, 2), np.nan)
    for b in range(batch):
        for node in range(lens[b]):
            token = committed[b, node]
            if b != 2:  # the third is limited by top-p
                wanted[b, node, 0] = chance(logits[b * width + node].astype(np.float64), temperatures[b], token)
            if with_draft and node < width - 1:
                wanted[b, node, 1] = np.log(draft[b, node, token])
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_a_target_limited_by_top_k_has_no_known_chance():
    info = SimpleNamespace(temperatures=torch.ones(2, 1), top_ps=torch.ones(2), top_ks=torch.tensor([5, 4]))
    result = torch.zeros(2, dtype=torch.int32), torch.ones(2, dtype=torch.int32), None
    verify_input = SimpleNamespace(draft_token_num=1, draft_probs=None)
    found = committed_logprobs(result, verify_input, SimpleNamespace(sampling_info=info), torch.zeros(2, 5))
    assert found[:, 0, 0].tolist()[0] == pytest.approx(np.log(1 / 5))  # of five tokens all five are kept
    assert found[1, 0].isnan().all()
