"""The CPU stand-ins of sgl_kernel against slow, obvious oracles: trees are walked as parent lists, caches as dicts."""

import importlib.util
import itertools
import random
import sys
from pathlib import Path

import paceline
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

STUB = Path(paceline.__file__).parent / "serving/cpu_host/stubs/sgl_kernel"
PRIVATE = "_paceline_test_sgl_kernel"


def load_privately(file, name):
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kernels():
    """The stand-in under a name of its own, so that nothing here can mistake it for the real sgl_kernel."""
    yield load_privately(STUB / "__init__.py", PRIVATE)
    for name in [name for name in sys.modules if name.split(".")[0] == PRIVATE]:
        del sys.modules[name]


# A tree in the test is a list of parents: parents[i] < i is the parent of node i, parents[0] is -1.


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


def build(kernels, parent_lists, flats, seq_lens, topk, depth, mode=1):
    nodes, batch = len(flats[0]) + 1, len(flats)
    mask = torch.ones(batch * nodes * nodes, dtype=torch.bool)
    positions = torch.zeros(batch * nodes, dtype=torch.int64)
    links = empty_links(batch, nodes)
    kernels.build_tree_kernel_efficient_cpu(
        torch.tensor(parent_lists), torch.tensor(flats), torch.tensor(seq_lens), mask, positions, *links,
        topk, depth, nodes, mode,
    )  # fmt: skip
    return mask, positions, links


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), topk=st.integers(1, 4), depth=st.integers(1, 4), batch=st.integers(1, 3))
def test_a_built_tree_has_the_mask_positions_and_links_of_its_parent_list(kernels, seed, topk, depth, batch):
    rng = random.Random(seed)
    drafted_in_all = topk + (depth - 1) * topk**2
    selected = rng.randint(1, min(drafted_in_all, topk * depth))
    trees = [drafted_tree(rng, topk, depth, selected) for _ in range(batch)]
    seq_lens = [rng.randint(1, 99) for _ in trees]
    mask, positions, links = build(kernels, [t[0] for t in trees], [t[1] for t in trees], seq_lens, topk, depth)
    parents = [t[2] for t in trees]
    assert mask.view(batch, selected + 1, -1).tolist() == [mask_of(p) for p in parents]
    assert_tree(parents, seq_lens, positions, *links)


def test_a_node_whose_parent_was_not_selected_is_in_no_list_of_children(kernels):
    # topk 2, two steps: flat index 4 is a child of flat index 1, which is not selected.
    _, positions, (_, child, sibling) = build(kernels, [[-1, 0, 1]], [[0, 4]], [10], topk=2, depth=2)
    assert child.tolist() == [[1, -1, -1]]
    assert sibling.tolist() == [[-1, -1, -1]]
    assert positions.tolist() == [10, 11, 11]


def test_mask_layouts_of_gpu_kernels_are_refused(kernels):
    with pytest.raises(NotImplementedError, match="tree_mask_mode is 0, expected 1"):
        build(kernels, [[-1]], [[0]], [3], topk=1, depth=1, mode=0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(1, 9), batch=st.integers(1, 3))
def test_links_and_positions_are_read_back_from_masks(kernels, seed, nodes, batch):
    rng = random.Random(seed)
    parents = [random_parents(rng, nodes) for _ in range(batch)]
    seq_lens = [rng.randint(1, 99) for _ in parents]
    masks = torch.tensor([mask_of(p) for p in parents]).flatten()
    positions = torch.zeros(batch * nodes, dtype=torch.int64)
    links = empty_links(batch, nodes)
    ngram = load_privately(STUB / "speculative.py", f"{PRIVATE}.speculative")
    ngram.reconstruct_indices_from_tree_mask(masks, torch.tensor(seq_lens), positions, *links, batch, nodes)
    assert_tree(parents, seq_lens, positions, *links)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), nodes=st.integers(1, 9), batch=st.integers(1, 3), width=st.integers(1, 6))
def test_greedy_verification_finds_the_path_a_brute_force_search_finds(kernels, seed, nodes, batch, width):
    rng = random.Random(seed)
    parents = [random_parents(rng, nodes) for _ in range(batch)]
    candidates = [distinct_among_siblings(rng, p) for p in parents]
    target = [[rng.randint(0, 4) for _ in range(nodes)] for _ in parents]
    predicts = torch.full((batch * nodes,), -7, dtype=torch.int32)
    accept_index = torch.full((batch, width), -1, dtype=torch.int32)
    accept_token_num = torch.full((batch,), -7, dtype=torch.int32)
    first_child, next_sibling = zip(*(links_of(p) for p in parents), strict=True)
    kernels.verify_tree_greedy_cpu(
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


@pytest.fixture
def table():
    """A request table whose slot names say where they belong: 100 * row + position."""
    return (torch.arange(5)[:, None] * 100 + torch.arange(20)).to(torch.int32)


def test_slots_are_read_range_after_range(kernels, table):
    out = torch.full((8,), -1, dtype=torch.int64)
    ranges = torch.tensor([3, 0, 4]), torch.tensor([2, 9, 5]), torch.tensor([4, 9, 8])
    rows, start, end = ranges
    kernels.assign_extend_cache_locs_cpu(rows, table, start, end, out, 20)
    assert out.tolist() == [302, 303, 405, 406, 407, -1, -1, -1]


def test_slots_are_written_range_after_range_and_nowhere_else(kernels, table):
    before = table.clone()
    out = torch.tensor([7, 8, 9, 10, 11])
    rows, start, end = torch.tensor([3, 0, 4]), torch.tensor([2, 9, 5]), torch.tensor([4, 9, 8])
    kernels.assign_req_to_token_pool_cpu(rows, table, start, end, out, 20)
    before[3, 2:4] = torch.tensor([7, 8])
    before[4, 5:8] = torch.tensor([9, 10, 11])
    assert table.tolist() == before.tolist()


def test_draft_slots_are_the_ones_behind_each_sequence(kernels, table):
    out = torch.zeros(2 * 6, dtype=torch.int64)
    kernels.assign_draft_cache_locs_contiguous_cpu(torch.tensor([1, 3]), table, torch.tensor([4, 10]), out, 20, 2, 3)
    assert out.tolist() == [*range(104, 110), *range(310, 316)]


def test_every_branch_sees_the_prefix_and_then_its_own_slots(kernels, table):
    before = table.clone()
    rows, seq_lens, topk, steps = [1, 3], [4, 10], 3, 2
    expanded = kernels.build_draft_decode_metadata_cpu(
        table, torch.tensor(rows), torch.tensor(seq_lens), topk, steps, 20
    )
    for b, (row, seq_len) in enumerate(zip(rows, seq_lens, strict=True)):
        for t in range(topk):
            own = [100 * row + seq_len + t * steps + s for s in range(steps)]
            assert expanded[b * topk + t, : seq_len + steps].tolist() == [*range(100 * row, 100 * row + seq_len), *own]
    assert table.tolist() == before.tolist()


def test_accepted_slots_are_gathered_in_order_without_the_gaps(kernels):
    out = torch.zeros(6, dtype=torch.int64)
    accept_index = torch.tensor([[0, 2, -1], [4, -1, -1]], dtype=torch.int32)
    kernels.fill_accept_out_cache_loc_cpu(accept_index, torch.tensor([50, 51, 52, 53, 54, 55]), out)
    assert out.tolist() == [50, 52, 54, 0, 0, 0]


def test_pool_rows_move_in_every_layer_even_when_they_overlap(kernels):
    layers = [torch.randn(6, 2, 4), torch.randn(6, 3, dtype=torch.bfloat16)]
    source, target = torch.tensor([1, 2, 5]), torch.tensor([0, 1, 2])
    expected = [layer.clone() for layer in layers]
    for before, layer in zip(layers, expected, strict=True):
        layer[target] = before[source]
    addresses = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)
    row_bytes = torch.tensor([layer.stride(0) * layer.element_size() for layer in layers])
    kernels.copy_all_layer_kv_cache_cpu(addresses, row_bytes, target, source)
    assert all(torch.equal(layer, wanted) for layer, wanted in zip(layers, expected, strict=True))


def test_moving_no_rows_touches_no_memory(kernels):
    nothing = torch.tensor([], dtype=torch.int64)
    kernels.copy_all_layer_kv_cache_cpu(torch.tensor([0], dtype=torch.uint64), torch.tensor([8]), nothing, nothing)


def test_the_bonus_token_is_the_last_accepted_one_of_each_row(kernels):
    bonus = torch.zeros(3, dtype=torch.int32)
    accepted = torch.arange(12, dtype=torch.int32)
    kernels.fill_bonus_tokens_cpu(accepted, torch.tensor([1, 4, 2], dtype=torch.int32), bonus, 4)
    assert bonus.tolist() == [0, 7, 9]


def test_rotation_drops_the_first_token_and_appends_the_new_one(kernels):
    tokens = torch.tensor([1, 2, 3, 4, 5, 6])
    starts, lens, new = torch.tensor([0, 3, 3]), torch.tensor([3, 0, 3]), torch.tensor([[70], [80], [90]])
    kernels.rotate_input_ids_cpu(tokens, starts, lens, new)
    assert tokens.tolist() == [2, 3, 70, 5, 6, 90]


def test_rotation_puts_the_new_token_where_it_is_told(kernels):
    tokens = torch.tensor([1, 2, 3, 4, 5, 6])
    starts, lens, new = torch.tensor([0, 3]), torch.tensor([3, 3]), torch.tensor([70, 90])
    kernels.rotate_input_ids_cpu(tokens, starts, lens, new, torch.tensor([1, 4]))
    assert tokens.tolist() == [2, 70, 3, 5, 90, 6]


def test_loading_the_stand_in_leaves_no_module_under_the_real_name(kernels):
    assert "sgl_kernel" not in sys.modules
    assert kernels.__name__ == PRIVATE
