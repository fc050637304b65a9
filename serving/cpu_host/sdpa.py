"""Paged attention in plain torch: the two kernels SGLang's CPU backend calls, with its exact signatures.

Axes: B requests, N query rows per request, T = total query rows, S keys (longest request), Hq query heads,
Hkv key heads, D head size, P pool slots, R request rows. Request b's keys are the slots req_to_token_RS[row_b, :len_b];
its queries are the last rows of that sequence, so a query row at position p sees the keys at positions <= p;
those of a block that is drafted at once see all keys.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def decode_attention(
    query_BHD: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    key_scale: float,
    value_scale: float,
    out_BHD: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    slots_B: Tensor,
    _workspace: Tensor,
    req_to_token_RS: Tensor,
    rows_B: Tensor,
    seq_lens_B: Tensor,
    scaling: float,
    logit_cap: float,
    is_cross: bool,
    window: int,
    _encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """One new token per request: stores its key and value (unless given None), writes the attention to `out_BHD`.

    Pools are [P, Hkv, D]; `seq_lens_B` counts the new token; `window` > 0 limits a query to that many last positions.
    Rows after those of `seq_lens_B` attend to nothing: SGLang adds them where ranks of data-parallel attention must
    have as many rows as each other. Changes both pools and `out_BHD`. Raises NotImplementedError for what
    `refuse_extras` names.
    """
    refuse_extras(key_scale, value_scale, logit_cap, sinks, is_cross=is_cross)
    requests = len(seq_lens_B)
    if key is not None and value is not None:
        key_pool[slots_B] = key.view(-1, *key_pool.shape[1:]).to(key_pool.dtype)
        value_pool[slots_B] = value.view(-1, *value_pool.shape[1:]).to(value_pool.dtype)
    slots_BS = _slots(req_to_token_RS, rows_B, seq_lens_B)
    attended = attend(
        query_BHD[:requests, None],
        key_pool,
        value_pool,
        slots_BS=slots_BS,
        seq_lens_B=seq_lens_B,
        scaling=scaling,
        window=window,
    )
    out_BHD[:requests] = attended[:, 0]
    out_BHD[requests:] = 0.0


def extend_attention(
    query_THD: Tensor,
    _key: Tensor | None,
    _value: Tensor | None,
    out_THD: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    key_scale: float,
    value_scale: float,
    req_to_token_RS: Tensor,
    rows_B: Tensor,
    seq_lens_B: Tensor,
    extend_lens_B: Tensor,
    starts_B: Tensor,
    _max_extend_len: int,
    scaling: float,
    logit_cap: float,
    is_cross: bool,
    window: int,
    _encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Several new tokens per request, whose keys and values the caller has stored already; writes `out_THD`.

    Request b owns the query rows [starts_B[b], starts_B[b] + extend_lens_B[b]), which are the last of its
    `seq_lens_B[b]` tokens. `tree_mask` holds one N*N square per request (bool, flat) and replaces causality among the
    new tokens; all requests then extend by the same N. Requests of equal length go through in one call.
    Without `is_causal` every query sees all keys of its request. Raises NotImplementedError for what `refuse_extras`
    names.
    """
    refuse_extras(key_scale, value_scale, logit_cap, sinks, is_cross=is_cross)
    lens = extend_lens_B.tolist()
    batches = [slice(0, len(lens))] if len(set(lens)) == 1 else [slice(b, b + 1) for b in range(len(lens))]
    for batch in batches:
        n = lens[batch.start]
        start = int(starts_B[batch.start])
        end = start + n * (batch.stop - batch.start)
        if n == 0:
            continue
        slots_BS = _slots(req_to_token_RS, rows_B[batch], seq_lens_B[batch])
        tree_BNN = None if tree_mask is None else tree_mask[batch.start * n * n : batch.stop * n * n].view(-1, n, n)
        query_BNHD = query_THD[start:end].view(-1, n, *query_THD.shape[1:])
        attended = attend(
            query_BNHD,
            key_pool,
            value_pool,
            slots_BS=slots_BS,
            seq_lens_B=seq_lens_B[batch],
            scaling=scaling,
            window=window,
            tree_BNN=tree_BNN,
            is_causal=is_causal,
        )
        out_THD[start:end] = attended.flatten(0, 1)


def attend(
    query_BNHD: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    *,
    slots_BS: Tensor,
    seq_lens_B: Tensor,
    scaling: float,
    window: int = 0,
    tree_BNN: Tensor | None = None,
    is_causal: bool = True,
) -> Tensor:
    """softmax(scaling * q k^T) v over each request's own keys, in the queries' dtype; returns [B, N, Hq, D].

    `slots_BS` may hold anything from a request's length on: those keys are masked.
    """
    visible_BNS = visible_keys(
        seq_lens_B, query_BNHD.shape[1], slots_BS.shape[1], window=window, tree_BNN=tree_BNN, is_causal=is_causal
    )
    key_BHSD = key_pool[slots_BS].transpose(1, 2).to(query_BNHD.dtype)
    value_BHSD = value_pool[slots_BS].transpose(1, 2).to(query_BNHD.dtype)
    attended_BHND = scaled_dot_product_attention(
        query_BNHD.transpose(1, 2),
        key_BHSD,
        value_BHSD,
        attn_mask=visible_BNS[:, None],
        scale=scaling,
        enable_gqa=query_BNHD.shape[2] != key_BHSD.shape[1],
    )
    return attended_BHND.transpose(1, 2)


def visible_keys(
    seq_lens_B: Tensor,
    rows: int,
    keys: int,
    *,
    window: int = 0,
    tree_BNN: Tensor | None = None,
    is_causal: bool = True,
) -> Tensor:
    """Which of `keys` positions each of a request's last `rows` positions may see; returns bool [B, N, S].

    A tree's square decides among the new tokens themselves; the committed prefix stays causal.
    """
    first_new_B11 = (seq_lens_B - rows)[:, None, None]
    query_at_BN1 = first_new_B11 + torch.arange(rows)[None, :, None]
    key_at_11S = torch.arange(keys)[None, None, :]
    last_seen_BN1 = query_at_BN1 if is_causal else (seq_lens_B - 1)[:, None, None].expand_as(query_at_BN1)
    visible_BNS = key_at_11S <= last_seen_BN1
    if window > 0:
        visible_BNS &= key_at_11S > query_at_BN1 - window
    if tree_BNN is None:
        return visible_BNS
    node_B1S = key_at_11S - first_new_B11
    is_node_B1S = (node_B1S >= 0) & (node_B1S < rows)
    in_tree_BNS = tree_BNN.bool().gather(2, node_B1S.clamp(0, rows - 1).expand(-1, rows, -1))
    return torch.where(is_node_B1S, in_tree_BNS, visible_BNS)


def refuse_extras(
    key_scale: float, value_scale: float, logit_cap: float, sinks: Tensor | None, *, is_cross: bool
) -> None:
    """Raise NotImplementedError, naming it, for a model that needs more than softmax attention over its own tokens."""
    extras = {
        "a quantised KV cache": (key_scale, value_scale) != (1.0, 1.0),
        "attention soft-capping": logit_cap > 0,
        "attention sinks": sinks is not None,
        "cross attention": is_cross,
    }
    needed = [name for name, is_needed in extras.items() if is_needed]
    if needed:
        raise NotImplementedError(
            f"cpu_sdpa does softmax attention over a request's own tokens only; this model needs {', '.join(needed)}"
        )


def _slots(req_to_token_RS: Tensor, rows_B: Tensor, seq_lens_B: Tensor) -> Tensor:
    """Pool slots of each request's keys, padded to the longest; int64 [B, S]. Padding points at valid slots."""
    longest = int(seq_lens_B.max())
    slots_BS = req_to_token_RS[rows_B.long(), :longest].long()
    return slots_BS.masked_fill_(torch.arange(longest) >= seq_lens_B[:, None], 0)
