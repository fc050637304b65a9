"""Quantised weights on a CPU: SGLang's own loader reads them, then each matrix is dequantised and multiplied as such.

SGLang has CPU kernels for them only where a processor has AMX, and none for some formats. Only weights are as on a GPU:
activations, which a GPU's kernels may quantise too, stay as they are.
"""

import functools
from collections.abc import Callable, Sequence
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
        method.process_weights_after_loading = _dequantise
        method.apply = _apply
    return method


def _apply(layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
    weight: Tensor = layer.dense_weight
    return linear(x, weight.to(x.dtype), bias)


def _dequantise(layer: Any) -> None:
    """Hold the matrix as float32 [out, in], beside the parameters that it was loaded as.

    ValueError where SGLang has not loaded all of them, which it does not notice itself.
    """
    found = dict(layer.named_parameters())
    layer.dense_weight = _matrix(found, getattr(layer, "logical_widths", [])).detach()
    if not layer.dense_weight.isfinite().all():
        raise ValueError(f"{sorted(found)}: got some that SGLang has not loaded, expected all of them")


def _matrix(found: dict[str, Tensor], widths: Sequence[int]) -> Tensor:
    """`widths` are those of the matrices that SGLang has joined."""
    from sglang.srt.hardware_backend.xpu.quantization import int4pack_utils as four_bits  # noqa: PLC0415 - as above

    if "weight_packed" in found:  # compressed-tensors
        codes: Tensor = four_bits.unpack_compressed_tensors_qweight(found["weight_packed"])
        return (codes - 8) * _spread(found["weight_scale"], codes)
    if "g_idx" in found:  # GPTQ, which stores a zero less one
        codes = four_bits.unpack_gptq_qweight(found["qweight"])
        group = found["g_idx"].long()
        zeros: Tensor = four_bits.unpack_gptq_qzeros(found["qzeros"])[group] + 1
        return ((codes - zeros) * found["scales"][group]).T
    if "qweight" in found:  # AWQ
        codes = four_bits.unpack_awq_to_codes(found["qweight"], len(found["qweight"])).int()
        zeros = four_bits.unpack_awq_to_codes(found["qzeros"], len(found["qzeros"])).int()
        return ((codes - _spread(zeros, codes)) * _spread(found["scales"], codes)).T
    weight = found["weight"]
    scale = found.get("weight_scale", found.get("weight_scale_inv"))
    if scale is None:  # loaded as it was, by --quantization fp8
        scale = (weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max).reshape(1, 1)
        weight = (weight / scale).to(torch.float8_e4m3fn)
    elif scale.dim() == 1:
        scale = scale.repeat_interleave(torch.tensor(widths))[:, None]
    return weight.float() * _spread(scale, weight)


def _spread(per_block: Tensor, over: Tensor) -> Tensor:
    """What is said of every block of rows and columns, for each value of `over`."""
    rows, columns = (size // blocks for size, blocks in zip(over.shape, per_block.shape, strict=True))
    return per_block.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
