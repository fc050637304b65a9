"""The draft in a target's own checkpoint: of a MiMo, its one layer for multi-token prediction (MTP)."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import ConfigError
from .checkpoint import WeightFiles

#: SGLang's class of the targets whose MTP layer is a draft here, as their config.json names it.
ARCHITECTURE: Final = "MiMoForCausalLM"
#: What the names of the layer's tensors begin with.
PREFIX: Final = "model.mtp_layers.0."
_ANY_LAYER: Final = "model.mtp_layers."


def is_mtp(config: Path) -> bool:
    """Whether this config.json is that of such a target, or of its MTP layer alone; False where it cannot be read."""
    return architecture_of(config) == ARCHITECTURE


def architecture_of(config: Path) -> str:
    """The first of `architectures` in a config.json; empty where there is none, or no such file can be read."""
    try:
        source = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    named = source.get("architectures") if isinstance(source, dict) else None
    return str(named[0]) if isinstance(named, list) and named else ""


def read_layer(weights: WeightFiles) -> tuple[dict[str, Tensor], bool]:
    """The tensors of the layer, and whether the checkpoint holds no others; they are not read. Blocks on the disk.

    ConfigError when there is no such layer, more than one, or a file that is not safetensors.
    """
    found: dict[str, Tensor] = {}
    stored_names = set[str]()
    for file in weights.files:
        try:
            with safe_open(file, framework="pt") as stored:
                stored_names.update(stored.keys())
                names = [name for name in stored.keys() if name.startswith(_ANY_LAYER)]  # noqa: SIM118 - no mapping
                found |= {name: stored.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{file}: got {error}, expected a safetensors file") from error
    others = sorted({name.split(".")[2] for name in found} - {"0"})
    if others or not found:
        got = f"MTP layers 0 and {', '.join(others)}" if others else "none"
        raise ConfigError(f"{weights.files[0].parent}: got {got}, expected one MTP layer, {PREFIX}*")
    return found, stored_names == found.keys()


def config_of_layer(config: Path) -> str:
    """config.json of the layer alone: as the target's, but without code of its own, which would have to lie beside it.

    MiMo's own class differs from Qwen2's by its name.
    """
    source: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    source.pop("auto_map", None)
    return json.dumps({**source, "model_type": "qwen2"}, indent=2, sort_keys=True) + "\n"


def digest_of_layer(config: str, tensors: Mapping[str, Tensor]) -> str:
    """Of names and contents: a layer that is replaced makes another draft."""
    digest = hashlib.sha256(config.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
