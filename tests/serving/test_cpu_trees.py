"""Draft trees on the CPU against slow, obvious oracles: the test walks a tree node by node, as a list of parents."""

import importlib
import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

# parents[i] < i is the parent of node i, and parents[0] is -1.


def random_parents(rng, nodes, max_children=4):
    parents = [-1]
    for node in range(1, nodes):
        parents.append(rng.choice([p for p in range(node) if parents.count(p) < max_children]))
    return parents


def path_to(parents, node):
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path[::-1]


def links_of(parents):
    children = [[c for c, p in enumerate(parents) if p == node] for node in range(len(parents))]
    first_child = [c[0] if c else -1 for c in children]
    next_sibling = [-1] * len(parents)
    for siblings in children:
        for left, right in itertools.pairwise(siblings):
            next_sibling[left] = right
    return first_child, next_sibling


def mask_of(parents):
    return [[j in path_to(parents, i) for j in range(len(parents))] for i in range(len(parents))]


def empty_links(batch, nodes):
    return [torch.full((batch, nodes), -1, dtype=torch.int64) for _ in range(3)]


def assert_tree(parents_by_request, seq_lens, positions, index, child, sibling):
    nodes = len(parents_by_request[0])
    assert index.tolist() == [[b * nodes + i for i in range(nodes)] for b in range(len(parents_by_request))]
    expected = [
        seq + len(path_to(p, i)) - 1 for p, seq in zip(parents_by_request, seq_lens, strict=True) for i in range(nodes)
    ]
    assert positions.tolist() == expected
    assert child.tolist() == [links_of(p)[0] for p in parents_by_request]
    assert sibling.tolist() == [links_of(p)[1] for p in parents_by_request]


def drafted_tree(rng, topk, depth, selected):
    """Draft as EAGLE does: topk children of the root, then at each step topk of the topk * topk continuations.

    Returns parent_list, selected_index and the parents of the selected tree. Flat indices: the first step holds
    0..topk-1, step s >= 1 holds topk + (s - 1) * topk**2 + (parent's place in its step) * topk + child.
    Entry 0 of parent_list is the root, then follow the flat indices of each step's survivors.
    """
    survivors, parent_list, parent_of = list(range(topk)), [-1], dict.fromkeys(range(topk), -1)
    parent_list += survivors
    for step in range(1, depth):
        first = topk + (step - 1) * topk**2
        for place, survivor in enumerate(survivors):
            parent_of.update({first + place * topk + child: survivor for child in range(topk)})
        survivors = sorted(rng.sample(range(first, first + topk**2), topk))
        if step < depth - 1:
            parent_list += survivors
    chosen = {-1}
    while len(chosen) < selected + 1:
        chosen.add(rng.choice([i for i, parent in parent_of.items() if parent in chosen and i not in chosen]))
    flat = sorted(chosen - {-1})
    return parent_list, flat, [-1] + [0 if parent_of[i] == -1 else 1 + flat.index(parent_of[i]) for i in flat]


def build(cpu_kernels, parent_lists, flats, seq_lens, topk, depth, mode=1):
    nodes, batch = len(flats[0]) + 1, len(flats)
    mask = torch.ones(batch * nodes * nodes, dtype=torch.bool)
    positions = torch.zeros(batch * nodes, dtype=torch.int64)
    links = empty_links(batch, nodes)
    cpu_kernels.build_tree_kernel_efficient_cpu(
        torch.tensor(parent_lists), torch.tensor(flats), torch.tensor(seq_lens), mask, positions, *links,
        topk, depth, nodes, mode,
    )  # fmt: skip
    return mask, positions, links


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), topk=st.integers(1, 4), depth=st.integers(1, 4), batch=st.integers(1, 3))
def test_a_built_tree_has_the_mask_positions_and_links_of_its_parent_list(cpu_kernels, seed, topk, depth, batch):
    rng = random.Random(seed)
    drafted_in_all = topk + (depth - 1) * topk**2
    selected = rng.randint(1, min(drafted_in_all, topk * depth))
    trees = [drafted_tree(rng, topk, depth, selected) for _ in range(batch)]
    seq_lens = [rng.randint(1, 99) for _ in trees]
    mask, positions, links = build(cpu_kernels, [t[0] for t in trees], [t[1] for t in trees], seq_lens, topk, depth)
    parents = [t[2] for t in trees]
    assert mask.view(batch, selected + 1, -1).tolist() == [mask_of(p) for p in parents]
    assert_tree(parents, seq_lens, positions, *links)


def test_a_node_whose_parent_was_not_selected_is_in_no_list_of_children(cpu_kernels):
    # topk 2, two steps: flat index 4 is a child of flat index 1, which is not selected.
    _, positions, (_, child, sibling) = build(cpu_kernels, [[-1, 0, 1]], [[0, 4]], [10], topk=2, depth=2)
    assert child.tolist() == [[1, -1, -1]]
    assert sibling.tolist() == [[-1, -1, -1]]
    assert positions.tolist() == [10, 11, 11]


def test_mask_layouts_of_gpu_kernels_are_refused(cpu_kernels):
    with pytest.raises(NotImplementedError, match="tree_mask_mode is 0, expected 1"):
        build(cpu_kernels, [[-1]], [[0]], [3], topk=1, depth=1, mode=0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(1, 9), batch=st.integers(1, 3))
def test_links_and_positions_are_read_back_from_masks(cpu_kernels, seed, nodes, batch):
    rng = random.Random(seed)
    parents = [random_parents(rng, nodes) for _ in range(batch)]
    seq_lens = [rng.randint(1, 99) for _ in parents]
    masks = torch.tensor([mask_of(p) for p in parents]).flatten()
    positions = torch.zeros(batch * nodes, dtype=torch.int64)
    links = empty_links(batch, nodes)
    ngram = importlib.import_module(f"{cpu_kernels.__name__}.speculative")
    ngram.reconstruct_indices_from_tree_mask(masks, torch.tensor(seq_lens), positions, *links, batch, nodes)
    assert_tree(parents, seq_lens, positions, *links)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(1, 9), batch=st.integers(1, 3), width=st.integers(1, 6))
def test_greedy_verification_finds_the_path_a_brute_force_search_finds(cpu_kernels, seed, nodes, batch, width):
    rng = random.Random(seed)
    parents = [random_parents(rng, nodes) for _ in range(batch)]
    candidates = [distinct_among_siblings(rng, p) for p in parents]
    target = [[rng.randint(0, 4) for _ in range(nodes)] for _ in parents]
    predicts = torch.full((batch * nodes,), -7, dtype=torch.int32)
    accept_index = torch.full((batch, width), -1, dtype=torch.int32)
    accept_token_num = torch.full((batch,), -7, dtype=torch.int32)
    first_child, next_sibling = zip(*(links_of(p) for p in parents), strict=True)
    cpu_kernels.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accept_token_num,
        candidates=torch.tensor(candidates),
        retrive_index=torch.arange(batch * nodes).view(batch, nodes),
        retrive_next_token=torch.tensor(first_child),
        retrive_next_sibling=torch.tensor(next_sibling),
        target_predict=torch.tensor(target),
    )
    for b in range(batch):
        path = longest_agreed_path(parents[b], candidates[b], target[b], width)
        assert accept_index[b].tolist() == [b * nodes + n for n in path] + [-1] * (width - len(path))
        assert accept_token_num[b] == len(path) - 1
        expected = [target[b][n] if n in path else -7 for n in range(nodes)]
        assert predicts.view(batch, nodes)[b].tolist() == expected


def distinct_among_siblings(rng, parents):
    """A drafter proposes a token once below each node: with 5 tokens and at most 4 children that is always possible."""
    tokens = [rng.randint(0, 4)]
    for node in range(1, len(parents)):
        taken = {tokens[n] for n in range(1, node) if parents[n] == parents[node]}
        tokens.append(rng.choice([t for t in range(5) if t not in taken]))
    return tokens


def longest_agreed_path(parents, candidates, target, width):
    paths = [path_to(parents, node) for node in range(len(parents))]
    agreed = [p for p in paths if all(candidates[c] == target[a] for a, c in itertools.pairwise(p))]
    return max(agreed, key=len)[:width]
