"""`cpu_sdpa`: SGLang's IntelAMXAttnBackend (metadata, tree masks, multi-step drafts) over the kernels of sdpa.py.

Loadable only inside a CPU server process: it needs SGLang and the `sgl_kernel` stand-in.
"""

from typing import Any, Final

import torch
from sgl_kernel import build_draft_decode_metadata_cpu
from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend, IntelAMXMultiStepDraftBackend

from .sdpa import decode_attention, extend_attention

_COMPILED_KERNELS: Final = ("decode_attention_cpu", "extend_attention_cpu")


class CpuAttentionBackend(IntelAMXAttnBackend):  # type: ignore[misc] # SGLang ships no types
    """Attention of one model (target or draft) for prefill, decode, tree verify and draft-extend, on any CPU."""

    def __init__(self, model_runner: Any) -> None:
        _name_compiled_kernels()
        super().__init__(model_runner)
        self.decode_attention_fwd = decode_attention
        self.extend_attention_fwd = extend_attention


class CpuMultiStepDraftBackend(IntelAMXMultiStepDraftBackend):  # type: ignore[misc] # SGLang ships no types
    """One CpuAttentionBackend for each draft step after the first, sharing one expanded request table."""

    def __init__(self, model_runner: Any, topk: int, num_steps: int) -> None:
        # The parent's constructor would build AMX backends, so its fields are set here instead.
        self.build_draft_decode_metadata = build_draft_decode_metadata_cpu
        self.topk = topk
        self.speculative_num_steps = num_steps
        self.attn_backends = [CpuAttentionBackend(model_runner) for _ in range(num_steps - 1)]
        self.device = model_runner.device
        self.pool_len = model_runner.req_to_token_pool.req_to_token.shape[1]


def _name_compiled_kernels() -> None:
    """Give torch.ops.sgl_kernel the two names that the parent's constructor looks up (and this class replaces)."""
    ops = torch.ops.sgl_kernel
    for name in _COMPILED_KERNELS:
        if name not in vars(ops):
            setattr(ops, name, None)
