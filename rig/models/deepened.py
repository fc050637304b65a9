"""A target made slower without changing its output: more layers that add nothing."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from .target import TargetModel

#: A layer adds to the residual stream through these two; at zero it adds nothing, at full cost.
SILENCED = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
#: Of a target of which a step costs some ten of its draft's, as with large ones.
LAYERS = 40


def slower(target: TargetModel, layers: int = LAYERS) -> TargetModel:
    """The same target with `layers` layers, kept beside it; made the first time, as `deepened` says."""
    folder = target.folder.with_name(f"{target.folder.name}-{layers}-layers")
    return replace(target, folder=deepened(target.folder, layers, folder))


def deepened(target: Path, layers: int, folder: Path) -> Path:
    """A copy of a Llama folder with `layers` layers, the additional ones silenced copies of its own; made once.

    Every token and every hidden state of the first layers are those of `target`, so its drafts fit the copy too.
    """
    if folder.exists():
        return folder
    hidden = folder.with_name(f".making-{folder.name}-{os.getpid()}")
    shutil.copytree(target, hidden)
    config = json.loads((target / CONFIG).read_text(encoding="utf-8"))
    own = config["num_hidden_layers"]
    tensors = load_file(target / WEIGHTS)
    for layer in range(own, layers):
        tensors |= _silenced(tensors, layer % own, layer)
    save_file(tensors, hidden / WEIGHTS, metadata={"format": "pt"})
    (hidden / CONFIG).write_text(json.dumps(config | {"num_hidden_layers": layers}), encoding="utf-8")
    hidden.rename(folder)
    return folder


def _silenced(tensors: dict[str, torch.Tensor], source: int, layer: int) -> dict[str, torch.Tensor]:
    prefix = f"model.layers.{source}."
    return {
        f"model.layers.{layer}.{name}": torch.zeros_like(tensor) if name in SILENCED else tensor.clone()
        for name, tensor in (
            (key.removeprefix(prefix), tensor) for key, tensor in tensors.items() if key.startswith(prefix)
        )
    }
