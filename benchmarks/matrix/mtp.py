"""Small targets whose MTP layer, one of their own kind, drafts: a MiMo, and those that number it as their last."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...buffer.board.weights_file import WEIGHTS_FILE

_CODE = "configuration_mimo"
#: transformers has no MiMo: a checkpoint brings its config's class, which --trust-remote-code lets SGLang load.
_CONFIG_CLASS = """from transformers import Qwen2Config


class MiMoConfig(Qwen2Config):
    model_type = "mimo"
"""


def make_mimo(folder: Path, seed: int) -> None:
    """Make the Qwen2 target in `folder` a MiMo with an untrained MTP layer."""
    tensors = load_file(folder / WEIGHTS_FILE)
    shapes = _shapes_of(0, tensors)
    width = len(tensors["model.norm.weight"])
    shapes["input_proj.weight"] = (width, 2 * width)
    shapes |= {f"{name}.weight": (width,) for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")}
    _add(folder, tensors, "model.mtp_layers.0.", _untrained(shapes, seed))
    named = {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "auto_map": {"AutoConfig": f"{_CODE}.MiMoConfig"},
    }
    _configure(folder, named)
    (folder / f"{_CODE}.py").write_text(_CONFIG_CLASS, encoding="utf-8")


def make_last_layer_mtp(folder: Path, seed: int) -> None:
    """Make the last layer of the target in `folder`, a GLM-4.5 or a DeepSeek-V3, its untrained MTP layer."""
    number = json.loads((folder / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"] - 1
    tensors = load_file(folder / WEIGHTS_FILE)
    shapes = _shapes_of(number, tensors)
    width = len(tensors["model.norm.weight"])
    shapes["eh_proj.weight"] = (width, 2 * width)
    shapes |= {f"{name}.weight": (width,) for name in ("enorm", "hnorm", "shared_head.norm")}
    _add(folder, tensors, f"model.layers.{number}.", _untrained(shapes, seed))
    _configure(folder, {"num_hidden_layers": number})


def _shapes_of(layer: int, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Of a decoder layer, by names without its prefix."""
    prefix = f"model.layers.{layer}."
    return {name.removeprefix(prefix): tuple(weight.shape) for name, weight in tensors.items() if prefix in name}


def _untrained(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Random weights, those of norms and biases too."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in sorted(shapes.items()):
        noise = torch.randn(shape, generator=generator)
        made[name] = 1.0 + 0.2 * noise if name.endswith("norm.weight") else 0.05 * noise
    return made


def _add(folder: Path, tensors: Mapping[str, Tensor], prefix: str, layer: Mapping[str, Tensor]) -> None:
    more = {prefix + name: weight for name, weight in layer.items()}
    save_file({**tensors, **more}, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def _configure(folder: Path, more: Mapping[str, Any]) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**config, **more, "num_nextn_predict_layers": 1}), encoding="utf-8")
