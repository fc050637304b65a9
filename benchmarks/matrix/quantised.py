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
_E4M3_MAX = torch.finfo(_E4M3).max
#: The order in which AWQ puts eight numbers of 4 bits into one of 32.
_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]

#: The tensors of a matrix [out, in], each by what follows the matrix's name.
Format = Callable[[Tensor], Mapping[str, Tensor]]


def _scaled(weight: Tensor, largest: float, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """The matrix with each block's values in -largest to largest, and the scales of the blocks."""
    height, width = weight.shape
    blocks = weight.reshape(height // rows, rows, width // columns, columns)
    scale = blocks.abs().amax((1, 3), keepdim=True) / largest
    return (blocks / scale).reshape(weight.shape), scale[:, 0, :, 0]


def _fp8(weight: Tensor) -> Mapping[str, Tensor]:
    values, scale = _scaled(weight, _E4M3_MAX, *weight.shape)
    return {"weight": values.to(_E4M3), "weight_scale": scale[0, 0], "input_scale": torch.tensor(1.0)}


def _fp8_in_blocks(weight: Tensor) -> Mapping[str, Tensor]:
    values, scale = _scaled(weight, _E4M3_MAX, _GROUP, _GROUP)
    return {"weight": values.to(_E4M3), "weight_scale_inv": scale}


def _fp8_by_row(weight: Tensor) -> Mapping[str, Tensor]:
    values, scale = _scaled(weight, _E4M3_MAX, 1, weight.shape[1])
    return {"weight": values.to(_E4M3), "weight_scale": scale}


def _int8_by_row(weight: Tensor) -> Mapping[str, Tensor]:
    values, scale = _scaled(weight, 127, 1, weight.shape[1])
    return {"weight": values.round().to(torch.int8), "weight_scale": scale}


def _int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers of 4 bits, zero at 8, and the scale of each group of a row."""
    values, scale = _scaled(weight, 7, 1, _GROUP)
    return (values.round() + 8).long(), scale


def _packed(codes: Tensor) -> Tensor:
    """Eight numbers of a row in one of 32 bits, the first in the lowest."""
    shifted = codes.reshape(len(codes), -1, 8) << torch.arange(0, 32, 4)
    return shifted.sum(2).to(torch.uint32).view(torch.int32)


def _compressed_int4(weight: Tensor) -> Mapping[str, Tensor]:
    codes, scale = _int4(weight)
    return {"weight_packed": _packed(codes), "weight_scale": scale, "weight_shape": torch.tensor(weight.shape)}


def _awq(weight: Tensor) -> Mapping[str, Tensor]:
    codes, scale = _int4(weight)
    ordered = codes.T.reshape(codes.shape[1], -1, 8)[..., _AWQ_ORDER].flatten(1)
    zeros = _packed(torch.full_like(scale.T, 8, dtype=torch.int64))
    return {"qweight": _packed(ordered), "qzeros": zeros, "scales": scale.T.half()}


def _gptq(weight: Tensor) -> Mapping[str, Tensor]:
    codes, scale = _int4(weight)
    zeros = _packed(torch.full_like(scale.T, 7, dtype=torch.int64))  # less one, as this format has it
    groups = torch.arange(weight.shape[1], dtype=torch.int32) // _GROUP
    return {"qweight": _packed(codes).T, "qzeros": zeros, "scales": scale.T.half(), "g_idx": groups}


def _compressed(bits: int, kind: str, **strategy: Any) -> Mapping[str, Any]:
    """As llm-compressor writes it; activations are quantised beside weights of 8 bits."""
    weights = {"num_bits": bits, "type": kind, "symmetric": True, "dynamic": False, **strategy}
    group = {"targets": ["Linear"], "weights": weights}
    if bits > 4:
        group["input_activations"] = {**weights, "strategy": "token", "dynamic": True}
    form = "pack-quantized" if bits == 4 else f"{kind}-quantized"
    return {
        "quant_method": "compressed-tensors", "quantization_status": "compressed", "format": form,
        "config_groups": {"group_0": group}, "ignore": ["lm_head"],
    }  # fmt: skip


_IN_GROUPS = {"bits": 4, "group_size": _GROUP}
#: Format -> what `quantization_config` of the target's config.json says, and how a matrix is stored.
FORMATS: Mapping[str, tuple[Mapping[str, Any], Format]] = {
    "FP8": ({"quant_method": "fp8", "activation_scheme": "static"}, _fp8),
    "FP8 in blocks": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [_GROUP, _GROUP]},
        _fp8_in_blocks,
    ),
    "compressed-tensors, FP8": (_compressed(8, "float", strategy="channel"), _fp8_by_row),
    "compressed-tensors, INT8": (_compressed(8, "int", strategy="channel"), _int8_by_row),
    "compressed-tensors, INT4": (_compressed(4, "int", strategy="group", group_size=_GROUP), _compressed_int4),
    "AWQ": ({"quant_method": "awq", "zero_point": True, "version": "gemm", **_IN_GROUPS}, _awq),
    "GPTQ": ({"quant_method": "gptq", "sym": True, "desc_act": False, **_IN_GROUPS}, _gptq),
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
