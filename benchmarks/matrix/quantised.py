"""Small targets in the formats in which people publish quantised ones, made from one that is not."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...buffer.board.weights_file import WEIGHTS_FILE

#: Values that share a scale. Published targets have 128, which the small one's matrices are too narrow for.
_GROUP = 32
_E4M3 = torch.float8_e4m3fn
#: The order in which AWQ puts eight numbers of 4 bits into one of 32.
_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]

#: The tensors of a matrix [out, in], each by what follows the matrix's name.
Format = Callable[[Tensor], Mapping[str, Tensor]]


def _fp8(weight: Tensor) -> Mapping[str, Tensor]:
    scale = weight.abs().max() / torch.finfo(_E4M3).max
    return {"weight": (weight / scale).to(_E4M3), "weight_scale": scale, "input_scale": torch.tensor(1.0)}


def _fp8_in_blocks(weight: Tensor) -> Mapping[str, Tensor]:
    blocks = weight.unflatten(0, (-1, _GROUP)).unflatten(2, (-1, _GROUP))
    scale = blocks.abs().amax((1, 3), keepdim=True) / torch.finfo(_E4M3).max
    return {"weight": (blocks / scale).reshape(weight.shape).to(_E4M3), "weight_scale_inv": scale[:, 0, :, 0]}


def _fp8_by_row(weight: Tensor) -> Mapping[str, Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / torch.finfo(_E4M3).max
    return {"weight": (weight / scale).to(_E4M3), "weight_scale": scale}


def _int8_by_row(weight: Tensor) -> Mapping[str, Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}


def _int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers of 4 bits, zero at 8, [out, in], and the scale of each group of a row, [out, in / _GROUP]."""
    groups = weight.unflatten(1, (-1, _GROUP))
    scale = groups.abs().amax(2, keepdim=True) / 7
    return ((groups / scale).round() + 8).flatten(1).to(torch.int64), scale[..., 0]


def _packed(codes: Tensor) -> Tensor:
    """Eight numbers of a row in one of 32 bits, the first in the lowest."""
    shifted = codes.unflatten(1, (-1, 8)) << torch.arange(0, 32, 4)
    return shifted.sum(2).to(torch.uint32).view(torch.int32)


def _compressed_int4(weight: Tensor) -> Mapping[str, Tensor]:
    codes, scale = _int4(weight)
    return {"weight_packed": _packed(codes), "weight_scale": scale, "weight_shape": torch.tensor(weight.shape)}


def _awq(weight: Tensor) -> Mapping[str, Tensor]:
    codes, scale = _int4(weight)
    ordered = codes.T.unflatten(1, (-1, 8))[..., _AWQ_ORDER].flatten(1)
    zeros = _packed(torch.full_like(scale.T, 8, dtype=torch.int64))
    return {"qweight": _packed(ordered), "qzeros": zeros, "scales": scale.T.half()}


def _gptq(weight: Tensor) -> Mapping[str, Tensor]:
    codes, scale = _int4(weight)
    zeros = _packed(torch.full_like(scale.T, 7, dtype=torch.int64))  # less one, as this format has it
    groups = torch.arange(weight.shape[1], dtype=torch.int32) // _GROUP
    return {"qweight": _packed(codes).T, "qzeros": zeros, "scales": scale.T.half(), "g_idx": groups}


def _compressed(kind: str, **of: Any) -> Mapping[str, Any]:
    """As llm-compressor writes it; `of` says what holds for weights, and for activations where they are quantised."""
    group = {"targets": ["Linear"], "weights": None, "input_activations": None, "output_activations": None, **of}
    return {
        "quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "quantization_status": "compressed",
    }  # fmt: skip


def _of(bits: int, kind: str, strategy: str, **more: Any) -> Mapping[str, Any]:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False, **more}


#: Format -> what `quantization_config` of the target's config.json says, and how a matrix is stored.
FORMATS: Mapping[str, tuple[Mapping[str, Any], Format]] = {
    "FP8": ({"quant_method": "fp8", "activation_scheme": "static"}, _fp8),
    "FP8 in blocks": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [_GROUP, _GROUP]},
        _fp8_in_blocks,
    ),
    "compressed-tensors, FP8": (
        _compressed(
            "float-quantized",
            weights=_of(8, "float", "channel"),
            input_activations=_of(8, "float", "token") | {"dynamic": True},
        ),
        _fp8_by_row,
    ),
    "compressed-tensors, INT8": (
        _compressed(
            "int-quantized",
            weights=_of(8, "int", "channel"),
            input_activations=_of(8, "int", "token") | {"dynamic": True},
        ),
        _int8_by_row,
    ),
    "compressed-tensors, INT4": (
        _compressed("pack-quantized", weights=_of(4, "int", "group", group_size=_GROUP)),
        _compressed_int4,
    ),
    "AWQ": ({"quant_method": "awq", "bits": 4, "group_size": _GROUP, "zero_point": True, "version": "gemm"}, _awq),
    "GPTQ": (
        {"quant_method": "gptq", "bits": 4, "group_size": _GROUP, "sym": True, "desc_act": False, "lm_head": False},
        _gptq,
    ),
}


def quantised_target(name: str, target: Path, folder: Path) -> Path:
    """The target in the format `name` of FORMATS, all matrices but embedding and head, in `folder`, which is made."""
    described, stored = FORMATS[name]
    shutil.copytree(target, folder)
    tensors = dict[str, Tensor]()
    for tensor, weight in load_file(target / WEIGHTS_FILE).items():
        matrix = tensor.removesuffix("weight")
        parts = stored(weight) if matrix.endswith("_proj.") else {"weight": weight}
        tensors |= {matrix + part: value.contiguous() for part, value in parts.items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {"quantization_config": described}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
