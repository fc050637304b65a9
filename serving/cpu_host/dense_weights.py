"""Quantised weights on a CPU: SGLang's own loader reads them, then each matrix is dequantised and multiplied as such.

SGLang has CPU kernels for them only where a processor has AMX, and none for some formats. Only weights are as on a GPU:
activations, which a GPU's kernels may quantise too, stay as they are.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

_DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def dense_config(original: Callable[[str], type], quantization: str) -> type:
    """SGLang's class of the quantisation `quantization`, its linear layers dense. Raises as SGLang does."""
    return _dense(original(quantization))


@functools.cache
def _dense(config: type) -> type:
    """A subclass: SGLang asks what a config is an instance of."""
    return type(config.__name__, (config,), {
        "get_quant_method": lambda self, layer, prefix: _with_dense_weights(config, self, layer, prefix),
        "get_supported_act_dtypes": lambda *_: _DTYPES,
        "_check_scheme_supported": lambda *_, **__: True,  # it would ask CUDA
    })  # fmt: skip


def _with_dense_weights(config: Any, self: Any, layer: Any, prefix: str) -> Any:
    """SGLang's method of `layer`, which makes and loads its parameters, with what needs a kernel replaced.

    It keeps its class, by whose name SGLang chooses how to load.
    """
    from sglang.srt.layers.quantization.base_config import LinearMethodBase  # noqa: PLC0415 - a CPU server alone
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod  # noqa: PLC0415 - as above

    method = config.get_quant_method(self, layer, prefix)
    if isinstance(method, LinearMethodBase) and not isinstance(method, UnquantizedLinearMethod):
        method.process_weights_after_loading = functools.partial(_dequantise, self)
        method.apply = _apply
    return method


def _apply(layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return linear(x, layer.dense_weight.to(x.dtype), bias)


def _dequantise(config: Any, layer: Any) -> None:
    """Hold the matrix as float32 [out, in], beside the parameters that it was loaded as.

    ValueError where SGLang has not loaded all of them, which a GPU's server would not notice.
    """
    found = dict(layer.named_parameters())
    if "qweight" in found:
        dense = _awq(found) if "awq" in config.get_name() else _gptq(found)
    elif "weight_packed" in found:
        dense = _compressed(found)
    elif found["weight"].is_floating_point() and found["weight"].itemsize > 1:  # loaded as it was, for fp8
        scale = found["weight"].abs().max() / torch.finfo(torch.float8_e4m3fn).max
        dense = (found["weight"] / scale).to(torch.float8_e4m3fn).float() * scale
    else:
        dense = _eight_bits(config, layer, found)
    if not dense.isfinite().all():
        raise ValueError(f"{config.get_name()}: got {sorted(found)} in part, expected SGLang to load all of them")
    layer.dense_weight = dense.detach()


def _eight_bits(config: Any, layer: Any, found: dict[str, Tensor]) -> Tensor:
    """Scales of blocks, of rows, or of the matrices that SGLang has joined."""
    codes = found["weight"].float()
    if "weight_scale_inv" in found:
        rows, columns = config.weight_block_size
        scale = found["weight_scale_inv"].repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        return codes * scale[: codes.shape[0], : codes.shape[1]]
    scale = found["weight_scale"]
    if scale.dim() == 1:
        scale = scale.repeat_interleave(torch.tensor(layer.logical_widths))[:, None]
    return codes * scale


def _awq(found: dict[str, Tensor]) -> Tensor:
    from sglang.srt.hardware_backend.xpu.quantization.int4pack_utils import (  # noqa: PLC0415 - a CPU server alone
        unpack_awq_to_codes,
    )

    codes, zeros = (unpack_awq_to_codes(found[name], len(found[name])) for name in ("qweight", "qzeros"))
    size = len(codes) // len(zeros)
    return ((codes - zeros.repeat_interleave(size, 0).to(torch.int16)) * found["scales"].repeat_interleave(size, 0)).T


def _gptq(found: dict[str, Tensor]) -> Tensor:
    from sglang.srt.hardware_backend.xpu.quantization.int4pack_utils import (  # noqa: PLC0415 - a CPU server alone
        unpack_gptq_qweight,
        unpack_gptq_qzeros,
    )

    group = found["g_idx"].long()
    zeros = unpack_gptq_qzeros(found["qzeros"])[group] + 1
    return ((unpack_gptq_qweight(found["qweight"]) - zeros) * found["scales"][group]).T


def _compressed(found: dict[str, Tensor]) -> Tensor:
    from sglang.srt.hardware_backend.xpu.quantization.int4pack_utils import (  # noqa: PLC0415 - a CPU server alone
        unpack_compressed_tensors_qweight,
    )

    codes = unpack_compressed_tensors_qweight(found["weight_packed"]) - 8
    scale = found["weight_scale"]
    return codes * scale.repeat_interleave(codes.shape[1] // scale.shape[1], 1)
