"""SGLang general plugin `paceline_cpu_host`: makes `--attention-backend cpu_sdpa` exist, and speculation sample."""

import functools
from collections.abc import Callable
from typing import Any, Final

from . import block_drafts
from .config import is_wanted_here

BACKEND: Final = "cpu_sdpa"

_VERIFY_USES_GREEDY: Final = "sglang.srt.speculative.eagle_utils._verify_uses_greedy"
_CHAIN_SAMPLING: Final = "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton"
_ROW_ARGMAX: Final = "sglang.kernels.ops.speculative.row_argmax.row_argmax"
_SYNCHRONIZE: Final = "torch.cuda.synchronize"
_LORA_MANAGER: Final = "sglang.srt.lora.lora_manager.LoRAManager.__init__"
_ROTATE: Final = "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_native"
_QUANTISATION: Final = "sglang.srt.layers.quantization.get_quantization_config"
#: What the sampling branch of `eagle_sample` calls beside that one; the `sgl_kernel` stand-in has them for a CPU.
_SAMPLING_KERNELS: Final = ("top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only")


def register() -> None:
    """Register `cpu_sdpa` with SGLang; called once by SGLang in each of its processes, before arguments are parsed.

    Returns without importing anything when PACELINE_CPU_HOST is not 1, which is the case on every GPU server.
    Raises ConfigError when that switch is malformed, ImportError when this SGLang lacks the registries.
    """
    if not is_wanted_here():
        return
    _offer_names()
    _register_target_backend()
    _offer_sampling_kernels()
    _register_hooks()


def _offer_names() -> None:
    from sglang.srt.arg_groups import choices  # noqa: PLC0415 - only a CPU server may load SGLang here

    choices.add_attention_backend_choices([BACKEND])
    choices.add_draft_attention_backend_choices([BACKEND])


def _register_target_backend() -> None:
    from sglang.srt.layers.attention.attention_registry import (  # noqa: PLC0415 - only a CPU server may load SGLang
        register_attention_backend,
    )

    register_attention_backend(BACKEND)(_target_backend)


def _offer_sampling_kernels() -> None:
    """Bind the sampling kernels where `eagle_sample` finds them.

    0.5.21 and 0.5.22 import them from `sgl_kernel` whenever they sample, and do not look here. 0.5.23 binds them when
    it loads: to None on a CPU, which a hook cannot replace, since SGLang would put the hook in place of every None.
    """
    import sgl_kernel  # noqa: PLC0415 - on the path of a CPU server alone
    from sglang.srt.speculative import eagle_utils  # noqa: PLC0415 - only a CPU server may load SGLang here

    for name in _SAMPLING_KERNELS:
        setattr(eagle_utils, name, getattr(sgl_kernel, name))


def _register_hooks() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - only on a CPU server

    HookRegistry.register("sglang.srt.utils.common.support_triton", _support_triton, HookType.AROUND)
    factory = "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend"
    HookRegistry.register(factory, _with_cpu_backend, HookType.BEFORE)
    HookRegistry.register(_VERIFY_USES_GREEDY, _verify_uses_greedy, HookType.AROUND)
    HookRegistry.register(_CHAIN_SAMPLING, _sample_chain, HookType.REPLACE)
    HookRegistry.register(_ROW_ARGMAX, _row_argmax, HookType.REPLACE)
    HookRegistry.register(_SYNCHRONIZE, _synchronize, HookType.REPLACE)
    HookRegistry.register(_ROTATE, _rotate_any, HookType.AROUND)
    HookRegistry.register(_QUANTISATION, _with_dense_weights, HookType.AROUND)
    HookRegistry.register(_LORA_MANAGER, _without_pinning, HookType.BEFORE)
    HookRegistry.register(block_drafts.HANDLE_FLAGS, block_drafts.allowing(BACKEND), HookType.AROUND)
    HookRegistry.register(block_drafts.MAKE_POOL, block_drafts.before_pool, HookType.BEFORE)
    HookRegistry.register(block_drafts.FORWARD_ARGUMENTS, block_drafts.exact_embeddings, HookType.AROUND)
    HookRegistry.register(block_drafts.STORE_COMMITTED, block_drafts.store_committed, HookType.REPLACE)


def _support_triton(original: Any, backend: str) -> bool:
    return backend != BACKEND and bool(original(backend))


def _verify_uses_greedy(original: Any, **facts: bool) -> bool:
    """A CPU is no reason to commit the argmax: the sampling branch finds its kernels in the `sgl_kernel` stand-in."""
    return bool(original(**{**facts, "is_cpu": False}))


def _sample_chain(**tensors: Any) -> None:
    """In place of Triton's chain sampling, which needs a GPU.

    0.5.23 binds that function in three modules and earlier releases import it when they sample: SGLang's registry
    replaces it in every module that is loaded, and in its own for those that load later.
    """
    from sgl_kernel import chain_speculative_sampling_cpu  # noqa: PLC0415 - on the path of a CPU server alone

    chain_speculative_sampling_cpu(**tensors)


def _row_argmax(scores_NV: Any) -> Any:
    """Index of each row's highest score, int64 [N]; since 0.5.22 a draft under rejection sampling is drawn with it."""
    return scores_NV.argmax(dim=-1)


def _synchronize(_device: Any = None) -> None:
    """Wait for nothing: what was computed on a CPU is done.

    0.5.21 and 0.5.22 wait for CUDA when they are asked for the checksums of weights; 0.5.23 asks the platform to wait.
    """


def _rotate_any(original: Any, rotary: Any, positions: Any, query: Any, key: Any, *rest: Any, **named: Any) -> Any:
    """No tokens too: a rank of data-parallel attention without requests runs along, and torch cannot shape nothing."""
    return original(rotary, positions, query, key, *rest, **named) if len(positions) else (query, key)


def _with_dense_weights(original: Any, quantization: str) -> Any:
    from .dense_weights import dense_config  # noqa: PLC0415 - only a server with quantised weights needs it

    return dense_config(original, quantization)


def _without_pinning(*_: Any, **__: Any) -> None:
    """Have torch pin no memory in a process with adapters, which SGLang copies from there whatever the device."""
    import torch  # noqa: PLC0415 - only a server with adapters needs it

    def unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def made(*args: Any, **named: Any) -> Any:
            named.pop("pin_memory", None)
            return make(*args, **named)

        return made

    for make in (torch.tensor, torch.empty, torch.zeros, torch.arange):
        setattr(torch, make.__name__, unpinned(make))
    torch.Tensor.pin_memory = _same  # type: ignore[method-assign, assignment]


def _same(tensor: Any, _device: Any = None) -> Any:
    return tensor


def _with_cpu_backend(  # the signature is DraftBackendFactory._create_backend's own
    factory: Any, backend_name: str, backend_map: dict[str, Any], error_template: str, stamps_children: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put `cpu_sdpa` on the list from which SGLang picks a draft's attention.

    SGLang asks for its multi-step container (the one with children to stamp) for drafting, and for a plain backend
    for draft-extend.
    """
    create = _multi_step_backend if stamps_children else _plain_backend
    offered = {**backend_map, BACKEND: functools.partial(create, factory)}
    return (factory, backend_name, offered, error_template, stamps_children), {}


def _multi_step_backend(factory: Any) -> tuple[str, Any]:
    from .attention import CpuMultiStepDraftBackend  # noqa: PLC0415 - SGLang's attention loads after its arguments

    steps = factory.speculative_num_steps
    return BACKEND, CpuMultiStepDraftBackend(factory.draft_model_runner, factory.topk, steps)


def _plain_backend(factory: Any) -> tuple[str, Any]:
    return BACKEND, _target_backend(factory.draft_model_runner)


def _target_backend(model_runner: Any) -> Any:
    from .attention import CpuAttentionBackend  # noqa: PLC0415 - SGLang's attention loads after its arguments

    if model_runner.use_mla_backend:
        _attend_to_latents()
    return CpuAttentionBackend(model_runner)


def _attend_to_latents() -> None:
    """Have SGLang's latent attention ask for keys and values as the pool has them, in prefill too.

    For a backend that it does not know it would give a prefill keys and values by head, which are in no pool.
    """
    from sglang.srt.models.deepseek_common import attention_backend_handler as handlers  # noqa: PLC0415 - DeepSeek's

    handlers.AttentionBackendRegistry.register(BACKEND, lambda *_: handlers.AttnForwardMethod.MLA)
