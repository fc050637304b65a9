"""A small MiMo: Qwen2's decoder, and in the same checkpoint an MTP layer, which is of the same kind and drafts."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ...buffer.board.weights_file import WEIGHTS_FILE

_CODE = "configuration_mimo"
#: transformers has no MiMo: a checkpoint brings its config's class, which --trust-remote-code lets SGLang load.
_CONFIG_CLASS = """from transformers import Qwen2Config


class MiMoConfig(Qwen2Config):
    model_type = "mimo"
"""


def add_mtp_layer(folder: Path, seed: int) -> None:
    """Make the Qwen2 target in `folder` a MiMo with an untrained MTP layer, norms and biases random too."""
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(folder / WEIGHTS_FILE)
    block = {name.removeprefix("model.layers.0."): weight for name, weight in tensors.items() if ".layers.0." in name}
    width = len(tensors["model.norm.weight"])
    norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    shapes = {name: weight.shape for name, weight in block.items()} | {
        "input_proj.weight": torch.Size((width, 2 * width)),
        **{f"{name}.weight": torch.Size((width,)) for name in norms},
    }
    for name, shape in sorted(shapes.items()):
        noise = torch.randn(shape, generator=generator)
        is_norm = name.endswith("norm.weight")
        tensors[f"model.mtp_layers.0.{name}"] = 1.0 + 0.2 * noise if is_norm else 0.05 * noise
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    file = folder / "config.json"
    named = {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "auto_map": {"AutoConfig": f"{_CODE}.MiMoConfig"},
        "num_nextn_predict_layers": 1,
    }
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | named), encoding="utf-8")
    (folder / f"{_CODE}.py").write_text(_CONFIG_CLASS, encoding="utf-8")
