"""What SGLang's DFLASH needs on a CPU, where it refuses to start: a draft's whole block in one forward.

Its worker has a way around every Triton kernel but one, which keeps the keys of committed tokens; that one is here.
"""

from collections.abc import Callable
from typing import Any, Final

HANDLE_FLAGS: Final = "sglang.srt.arg_groups.speculative_hook._handle_dflash"
STORE_COMMITTED: Final = "sglang.srt.mem_cache.memory_pool._set_kv_buffer_prefix_valid_impl"
MAKE_POOL: Final = "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.alloc_memory_pool"
FORWARD_ARGUMENTS: Final = "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs"


class _Platform:
    """What SGLang asks a platform that it does not know, while it reads the flags of DFLASH."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def is_out_of_tree(self) -> bool:
        return True

    def supports_speculative_algorithm(self, _algorithm: str) -> bool:
        return True

    def supports_speculative_draft_attention_backend(self, _algorithm: str, backend: str) -> bool:
        return backend == self._backend

    def get_default_speculative_draft_attention_backend(self, _algorithm: str) -> str:
        return self._backend


def allowing(backend: str) -> Callable[..., None]:
    """AROUND _handle_dflash(server_args), which refuses a CPU and its attention, unless a platform offers them."""

    def handle(original: Callable[..., None], server_args: Any) -> None:
        from sglang.srt.arg_groups import speculative_hook  # noqa: PLC0415 - only a server with DFLASH needs it

        found = speculative_hook.current_platform
        speculative_hook.current_platform = _Platform(backend)
        try:
            original(server_args)
        finally:
            speculative_hook.current_platform = found

    return handle


def before_pool(*_: Any, **__: Any) -> None:
    """BEFORE DFlashWorkerV2.alloc_memory_pool: what the worker and a CPU miss in each other, while nothing runs yet."""
    import sgl_kernel  # noqa: PLC0415 - only a server with DFLASH needs it
    import torch  # noqa: PLC0415 - as above
    from sglang.srt.speculative import dflash_utils  # noqa: PLC0415 - as above
    from sglang.srt.speculative.dflash_info import DFlashVerifyInput  # noqa: PLC0415 - as above

    DFlashVerifyInput.tree_topk = 1  # a block is verified as a chain
    # A CPU has one stream, and torch no kernel to record it by.
    torch.Tensor.record_stream = _nothing  # type: ignore[method-assign, assignment]
    for name in ("top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only"):
        setattr(dflash_utils, name, getattr(sgl_kernel, name))
    dflash_utils._DFLASH_SAMPLING_VERIFY_AVAILABLE = True  # noqa: SLF001 - else the argmax is committed


def _nothing(_tensor: Any, _stream: Any) -> None:
    pass


def exact_embeddings(original: Callable[..., dict[str, Any]], runner: Any, batch: Any, *rest: Any) -> dict[str, Any]:
    """AROUND ModelRunner._extend_forward_kwargs, which rounds embeddings to bfloat16: a float32 draft takes none."""
    found = original(runner, batch, *rest)
    if "input_embeds" in found and batch.replace_embeds is None:
        found["input_embeds"] = batch.input_embeds.to(runner.dtype)
    return found


def store_committed(
    k: Any, v: Any, k_cache: Any, v_cache: Any, loc_2d: Any, commit_lens: Any, *_: Any, **__: Any
) -> None:
    """Keep keys and values of each request's first `commit_lens` rows, where `loc_2d` says; the rest goes nowhere."""
    import torch  # noqa: PLC0415 - on the path of a CPU server alone

    is_committed = torch.arange(loc_2d.shape[1]) < commit_lens[:, None]
    slots = loc_2d[is_committed]
    k_cache[slots] = k.view(*loc_2d.shape, *k.shape[1:])[is_committed].to(k_cache.dtype)
    v_cache[slots] = v.view(*loc_2d.shape, *v.shape[1:])[is_committed].to(v_cache.dtype)
