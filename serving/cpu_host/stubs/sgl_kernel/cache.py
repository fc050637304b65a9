"""KV-cache bookkeeping: which pool slot holds which token.

`req_to_token` is int32 [requests, positions] and maps a request's position to its slot in the KV pool. B requests are
picked from it by `req_pool_indices`; ranges [start, end) are positions, concatenated request after request.
`pool_len` is the table's width, which the compiled kernels need and torch does not.
"""

import ctypes

import numpy as np
import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write the slots `out_cache_loc` to each request's positions [start, end) of `req_to_token`."""
    rows, positions = _ragged(req_pool_indices, start_offset, end_offset)
    req_to_token[rows, positions] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Read the slots of each request's positions [start, end) into the front of `out_cache_loc`."""
    rows, positions = _ragged(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: rows.numel()] = req_to_token[rows, positions].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the topk * num_steps slots after each request's sequence into `out_cache_loc`, branch after branch."""
    positions_BN = seq_lens.long()[:, None] + torch.arange(topk * num_steps)
    out_cache_loc.copy_(req_to_token[req_pool_indices.long()[:, None], positions_BN].reshape(-1))


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """A request table with one row per branch of the draft tree; returns a fresh [B * topk, positions].

    Row b * topk + t is request b's row with branch t's num_steps slots moved to directly after the sequence.
    """
    table = req_to_token[req_pool_indices.long()].repeat_interleave(topk, 0)
    rows = torch.arange(table.shape[0])[:, None]
    wanted = seq_lens.long().repeat_interleave(topk)[:, None] + torch.arange(num_steps)
    held = wanted + (rows % topk) * num_steps
    table[rows, wanted] = table[rows, held]
    return table


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Write the slots of the accepted nodes (index -1: none) to the front of `accept_out_cache_loc`, in order."""
    nodes = accept_index.reshape(-1).long()
    nodes = nodes[nodes >= 0]
    accept_out_cache_loc[: nodes.numel()] = out_cache_loc[nodes]


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy pool rows src -> tgt in every layer buffer; source and target rows may overlap.

    A buffer is known by its raw address (`data_ptrs`) and its row size in bytes (`strides`); the caller answers for
    both, and for every location lying inside the buffer.
    """
    if tgt_loc.numel() == 0:
        return
    target = tgt_loc.numpy()
    source = src_loc.numpy()
    height = 1 + max(int(target.max()), int(source.max()))
    for address, row_bytes in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (height * row_bytes)).from_address(address)
        rows = np.frombuffer(memory, dtype=np.uint8).reshape(height, row_bytes)
        rows[target] = rows[source]


def _ragged(rows_B: Tensor, start_B: Tensor, end_B: Tensor) -> tuple[Tensor, Tensor]:
    """Row and position of every element of the concatenated ranges [start, end); both int64 [sum of lengths]."""
    start_B = start_B.long()
    end_B = end_B.long()
    lens_B = end_B - start_B
    rows = rows_B.long().repeat_interleave(lens_B)
    first_B = lens_B.cumsum(0) - lens_B
    positions = torch.arange(rows.numel()) + (start_B - first_B).repeat_interleave(lens_B)
    return rows, positions
