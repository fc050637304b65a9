"""The CPU stand-ins of sgl_kernel that move slots and tokens: small tables, expected values written out."""

import pytest
import torch


@pytest.fixture
def table():
    """A request table whose slot names say where they belong: 100 * row + position."""
    return (torch.arange(5)[:, None] * 100 + torch.arange(20)).to(torch.int32)


def test_slots_are_read_range_after_range(cpu_kernels, table):
    out = torch.full((8,), -1, dtype=torch.int64)
    ranges = torch.tensor([3, 0, 4]), torch.tensor([2, 9, 5]), torch.tensor([4, 9, 8])
    rows, start, end = ranges
    cpu_kernels.assign_extend_cache_locs_cpu(rows, table, start, end, out, 20)
    assert out.tolist() == [302, 303, 405, 406, 407, -1, -1, -1]


def test_slots_are_written_range_after_range_and_nowhere_else(cpu_kernels, table):
    before = table.clone()
    out = torch.tensor([7, 8, 9, 10, 11])
    rows, start, end = torch.tensor([3, 0, 4]), torch.tensor([2, 9, 5]), torch.tensor([4, 9, 8])
    cpu_kernels.assign_req_to_token_pool_cpu(rows, table, start, end, out, 20)
    before[3, 2:4] = torch.tensor([7, 8])
    before[4, 5:8] = torch.tensor([9, 10, 11])
    assert table.tolist() == before.tolist()


def test_draft_slots_are_the_ones_after_each_sequence(cpu_kernels, table):
    out = torch.zeros(2 * 6, dtype=torch.int64)
    cpu_kernels.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor([1, 3]), table, torch.tensor([4, 10]), out, 20, 2, 3
    )
    assert out.tolist() == [*range(104, 110), *range(310, 316)]


def test_every_branch_sees_the_prefix_and_then_its_own_slots(cpu_kernels, table):
    before = table.clone()
    rows, seq_lens, topk, steps = [1, 3], [4, 10], 3, 2
    expanded = cpu_kernels.build_draft_decode_metadata_cpu(
        table, torch.tensor(rows), torch.tensor(seq_lens), topk, steps, 20
    )
    for b, (row, seq_len) in enumerate(zip(rows, seq_lens, strict=True)):
        for t in range(topk):
            own = [100 * row + seq_len + t * steps + s for s in range(steps)]
            assert expanded[b * topk + t, : seq_len + steps].tolist() == [*range(100 * row, 100 * row + seq_len), *own]
    assert table.tolist() == before.tolist()


def test_accepted_slots_are_gathered_in_order_without_the_gaps(cpu_kernels):
    out = torch.zeros(6, dtype=torch.int64)
    accept_index = torch.tensor([[0, 2, -1], [4, -1, -1]], dtype=torch.int32)
    cpu_kernels.fill_accept_out_cache_loc_cpu(accept_index, torch.tensor([50, 51, 52, 53, 54, 55]), out)
    assert out.tolist() == [50, 52, 54, 0, 0, 0]


def test_pool_rows_move_in_every_layer_even_when_they_overlap(cpu_kernels):
    layers = [torch.randn(6, 2, 4), torch.randn(6, 3, dtype=torch.bfloat16)]
    source, target = torch.tensor([1, 2, 5]), torch.tensor([0, 1, 2])
    expected = [layer.clone() for layer in layers]
    for before, layer in zip(layers, expected, strict=True):
        layer[target] = before[source]
    addresses = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)
    row_bytes = torch.tensor([layer.stride(0) * layer.element_size() for layer in layers])
    cpu_kernels.copy_all_layer_kv_cache_cpu(addresses, row_bytes, target, source)
    assert all(torch.equal(layer, wanted) for layer, wanted in zip(layers, expected, strict=True))


def test_the_bonus_token_is_the_last_accepted_one_of_each_row(cpu_kernels):
    bonus = torch.zeros(3, dtype=torch.int32)
    accepted = torch.arange(12, dtype=torch.int32)
    cpu_kernels.fill_bonus_tokens_cpu(accepted, torch.tensor([1, 4, 2], dtype=torch.int32), bonus, 4)
    assert bonus.tolist() == [0, 7, 9]


def test_rotation_drops_the_first_token_and_appends_the_new_one(cpu_kernels):
    tokens = torch.tensor([1, 2, 3, 4, 5, 6])
    starts, lens, new = torch.tensor([0, 3, 3]), torch.tensor([3, 0, 3]), torch.tensor([[70], [80], [90]])
    cpu_kernels.rotate_input_ids_cpu(tokens, starts, lens, new)
    assert tokens.tolist() == [2, 3, 70, 5, 6, 90]


def test_rotation_puts_the_new_token_where_it_should_be(cpu_kernels):
    tokens = torch.tensor([1, 2, 3, 4, 5, 6])
    starts, lens, new = torch.tensor([0, 3]), torch.tensor([3, 3]), torch.tensor([70, 90])
    cpu_kernels.rotate_input_ids_cpu(tokens, starts, lens, new, torch.tensor([1, 4]))
    assert tokens.tolist() == [2, 70, 3, 5, 90, 6]
