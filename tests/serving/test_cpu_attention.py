"""The CPU host's paged attention against a softmax written out query by query."""

import pytest
import torch
from paceline.serving.cpu_host.sdpa import decode_attention, extend_attention

HEADS, KEY_HEADS, SIZE, SCALE = 4, 2, 8, 0.3
REQUESTS, POSITIONS = 5, 24


class Pool:
    """A KV pool whose slots are dealt out at random, and the queries of one batch."""

    def __init__(self, seq_lens, new_lens, seed=0):
        generator = torch.Generator().manual_seed(seed)
        slots = 1 + torch.randperm(REQUESTS * POSITIONS, generator=generator)
        self.table = slots.view(REQUESTS, POSITIONS).to(torch.int32)
        self.keys = torch.randn(1 + slots.numel(), KEY_HEADS, SIZE, generator=generator)
        self.values = torch.randn(1 + slots.numel(), KEY_HEADS, SIZE, generator=generator)
        self.queries = torch.randn(sum(new_lens), HEADS, SIZE, generator=generator)
        self.rows = torch.tensor([3, 0, 4, 1, 2][: len(seq_lens)])
        self.seq_lens, self.new_lens = torch.tensor(seq_lens), torch.tensor(new_lens)
        self.starts = self.new_lens.cumsum(0) - self.new_lens

    def expected(self, may_see):
        """One softmax per query row and head; may_see(request, query position, key position) decides what counts."""
        out = torch.empty_like(self.queries)
        for b, row in enumerate(self.rows.tolist()):
            length, new = int(self.seq_lens[b]), int(self.new_lens[b])
            for i in range(new):
                at = length - new + i
                slots = [int(self.table[row, p]) for p in range(length) if may_see(b, at, p)]
                for head in range(HEADS):
                    shared = head * KEY_HEADS // HEADS
                    query = self.queries[int(self.starts[b]) + i, head]
                    weights = torch.softmax(SCALE * self.keys[slots, shared] @ query, 0)
                    out[int(self.starts[b]) + i, head] = weights @ self.values[slots, shared]
        return out

    def extend(self, window=0, tree_mask=None, cap=0.0, sinks=None, causal=True):
        out = self.queries.new_full((*self.queries.shape[:2], self.values.shape[2]), torch.nan)
        extend_attention(
            self.queries, None, None, out, self.keys, self.values, 1.0, 1.0, self.table, self.rows, self.seq_lens,
            self.new_lens, self.starts, int(self.new_lens.max()), SCALE, cap, False, window, None, sinks, tree_mask,
            causal,
        )  # fmt: skip
        return out

    def decode(self, key=None, value=None, slots=None, window=0):
        out = self.queries.new_full((*self.queries.shape[:2], self.values.shape[2]), torch.nan)
        decode_attention(
            self.queries, self.keys, self.values, 1.0, 1.0, out, key, value, slots, torch.empty(0), self.table,
            self.rows, self.seq_lens, SCALE, 0.0, False, window, None, None,
        )  # fmt: skip
        return out


def causal(_request, query, key):
    return key <= query


def within(window):
    return lambda _request, query, key: query - window < key <= query


@pytest.mark.parametrize("new_lens", [[3, 3, 3], [1, 7, 4], [5, 0, 2]], ids=["equal", "ragged", "one empty"])
@pytest.mark.parametrize("window", [0, 4])
def test_extend_is_causal_softmax_over_each_requests_own_slots(new_lens, window):
    pool = Pool(seq_lens=[9, 7, 20], new_lens=new_lens)
    torch.testing.assert_close(
        pool.extend(window), pool.expected(within(window) if window else causal), atol=1e-5, rtol=1e-5
    )


def test_a_block_that_is_drafted_at_once_sees_all_keys_of_its_own_request():
    pool = Pool(seq_lens=[9, 7, 20], new_lens=[3, 3, 3])
    everything = pool.expected(lambda _request, _query, _key: True)
    torch.testing.assert_close(pool.extend(causal=False), everything, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [0, 4])
def test_decode_is_softmax_over_all_keys_so_far(window):
    pool = Pool(seq_lens=[9, 1, 20, 4], new_lens=[1, 1, 1, 1])
    torch.testing.assert_close(
        pool.decode(window=window), pool.expected(within(window) if window else causal), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("act", [Pool.extend, Pool.decode])
def test_values_may_be_the_first_channels_of_keys_as_in_latent_attention(act):
    pool = Pool(seq_lens=[9, 5, 20], new_lens=[1, 1, 1])
    pool.values = pool.keys
    expected = pool.expected(causal)[..., :5]
    pool.values = pool.keys[..., :5]
    torch.testing.assert_close(act(pool), expected, atol=1e-5, rtol=1e-5)


def test_decode_stores_the_new_key_and_value_before_it_attends():
    pool = Pool(seq_lens=[9, 5], new_lens=[1, 1])
    slots = pool.table[pool.rows, pool.seq_lens - 1].long()
    key, value = torch.randn(2, KEY_HEADS * SIZE), torch.randn(2, KEY_HEADS * SIZE)
    attended = pool.decode(key, value, slots)
    assert torch.equal(pool.keys[slots].flatten(1), key)
    assert torch.equal(pool.values[slots].flatten(1), value)
    torch.testing.assert_close(attended, pool.expected(causal), atol=1e-5, rtol=1e-5)


def test_rows_added_to_have_as_many_as_other_ranks_attend_to_nothing():
    pool = Pool(seq_lens=[9, 5], new_lens=[1, 1])
    expected = pool.expected(causal)
    pool.queries = torch.cat([pool.queries, torch.full_like(pool.queries, torch.nan)])
    attended = pool.decode()
    torch.testing.assert_close(attended[:2], expected, atol=1e-5, rtol=1e-5)
    assert attended[2:].abs().sum() == 0.0


def test_a_tree_node_sees_the_prefix_and_its_own_ancestors_only():
    parents = [[-1, 0, 0, 1], [-1, 0, 1, 1]]
    pool = Pool(seq_lens=[9, 14], new_lens=[4, 4])
    first_node = [9 - 4, 14 - 4]

    def may_see(request, query, key):
        node, wanted = query - first_node[request], key - first_node[request]
        while node > max(wanted, 0):
            node = parents[request][node]
        return wanted < 0 or node == wanted

    mask = [may_see(b, first_node[b] + i, first_node[b] + j) for b in range(2) for i in range(4) for j in range(4)]
    attended = pool.extend(tree_mask=torch.tensor(mask))
    torch.testing.assert_close(attended, pool.expected(may_see), atol=1e-5, rtol=1e-5)


def test_slots_of_other_requests_have_no_influence():
    pool = Pool(seq_lens=[9, 7], new_lens=[1, 1])
    before = pool.decode()
    own = torch.cat([pool.table[row, :length] for row, length in zip(pool.rows, pool.seq_lens, strict=True)]).long()
    foreign = torch.ones(len(pool.keys), dtype=torch.bool).index_fill(0, own, value=False)
    pool.keys[foreign], pool.values[foreign] = 1e6, 1e6
    assert torch.equal(pool.decode(), before)


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"cap": 30.0}, "attention soft-capping"),
        ({"sinks": torch.zeros(HEADS)}, "attention sinks"),
    ],
)
def test_a_model_that_needs_more_than_causal_softmax_is_refused_by_name(option, named):
    pool = Pool(seq_lens=[9], new_lens=[2])
    with pytest.raises(NotImplementedError, match=f"this model needs {named}"):
        pool.extend(**option)
