"""One forward of the draft over committed tokens that it has not read, for some of SGLang's running requests."""

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kept_states import KeptStates, Missed


class Unread(NamedTuple):
    """A request and what its draft has not read."""

    req: Any
    pool_row: int  # of SGLang's table from positions to cache slots
    missed: Missed


def read_missed(draft_worker: Any, batch: Any, unread: Sequence[Unread], kept: KeptStates) -> Any:
    """Fill the draft's cache where it has gaps; return SGLang's EagleDraftInput, a row per request, in their order.

    `batch` is a ScheduleBatch that is only copied from. SGLang's own pass over a prompt does it: a gap is a prompt
    whose beginning is cached. It is called without the hooks on it, since nothing is prefilled here.
    """
    hidden_TD, tokens_T = kept.read([one.missed for one in unread])
    ends = torch.tensor([len(one.missed.rows) for one in unread]).cumsum(0)
    last_B = tokens_T.index_select(0, (ends - 1).to(tokens_T.device))
    part = _part(batch, unread, _before_rotation(tokens_T))
    read = inspect.unwrap(type(draft_worker)._draft_extend_for_prefill)  # noqa: SLF001 - no public API
    return read(draft_worker, part, hidden_TD, last_B)


def _before_rotation(tokens_T: Tensor) -> Tensor:
    """Input ids that become `tokens_T` once SGLang has shifted each request's to the left and put its last one there.

    The first one of each request is dropped by that, so it may be any token.
    """
    return torch.cat([tokens_T[:1], tokens_T[:-1]])


def _part(batch: Any, unread: Sequence[Unread], input_ids: Tensor) -> Any:
    """A prefill batch of these requests, from where their draft has read to their last committed token."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    part = copy.copy(batch)
    device = input_ids.device
    runs = [one.missed for one in unread]
    part.reqs = part.decoding_reqs = [one.req for one in unread]
    part.forward_mode = ForwardMode.EXTEND
    part.input_ids = input_ids
    part.spec_info = None
    part.prefix_lens = [run.start for run in runs]
    part.extend_lens = [len(run.rows) for run in runs]
    part.extend_logprob_start_lens = list(part.extend_lens)
    part.extend_num_tokens = len(input_ids)
    part.seq_lens_cpu = torch.tensor([run.end for run in runs])
    part.seq_lens_sum = sum(run.end for run in runs)
    part.seq_lens = part.seq_lens_cpu.to(device)
    part.orig_seq_lens = part.seq_lens.to(torch.int32)
    part.req_pool_indices_cpu = torch.tensor([one.pool_row for one in unread])
    part.req_pool_indices = part.req_pool_indices_cpu.to(device)
    table = batch.req_to_token_pool.req_to_token
    part.out_cache_loc = torch.cat([table[one.pool_row, one.missed.start : one.missed.end] for one in unread]).long()
    part.sampling_info = copy.copy(batch.sampling_info)
    part.has_grammar = part.return_logprob = False
    part.top_logprobs_nums = part.token_ids_logprobs = part.extend_input_logprob_token_ids = None
    part.chunked_req = part.chunked_req_next_prompt_token = None
    if batch.multimodal_inputs is not None:
        part.multimodal_inputs = [one.req.multimodal_inputs for one in unread]
    return part


def with_rows(spec_info: Any, rows: Sequence[int], read: Any) -> Any:
    """What SGLang drafts from, with `read` in place of what it knew of these rows."""
    found = copy.copy(spec_info)
    for name in ("topk_p", "topk_index", "hidden_states"):
        known = getattr(spec_info, name)
        fresh = getattr(read, name)
        if len(rows) == len(known):
            setattr(found, name, fresh)
        else:
            at = torch.tensor(rows).to(known.device, non_blocking=True)
            setattr(found, name, known.index_copy(0, at, fresh.to(known.dtype)))
    return found


def current_stream(device: Any) -> Any:
    """The stream that SGLang's forward runs on now; None on a CPU."""
    on = torch.device(device)
    return None if on.type == "cpu" else torch.get_device_module(on).current_stream()


@contextmanager
def running_on(stream: Any) -> Iterator[None]:
    """Run the body on `stream`, after what the present one holds and before what follows there."""
    if stream is None:
        yield
        return
    module = torch.get_device_module(stream.device)
    present = module.current_stream()
    stream.wait_stream(present)
    with module.stream(stream):
        yield
    present.wait_stream(stream)
