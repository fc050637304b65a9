"""Targets with an untrained MTP layer, for tests that start a real server: two that compute what a Llama does."""

import json
from pathlib import Path

import torch
from paceline.benchmarks.matrix.models import random_target
from paceline.benchmarks.matrix.mtp import make_last_layer_mtp, make_mimo
from paceline.benchmarks.matrix.rows import DEEPSEEK
from paceline.buffer.board.weights_file import WEIGHTS_FILE
from safetensors.torch import load_file, save_file
from torch import Tensor


def mimo_of(llama: Path, folder: Path) -> Path:
    """Qwen2's layers with biases of 0."""
    tensors = load_file(llama / WEIGHTS_FILE)
    for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        tensors[name.replace("weight", "bias")] = torch.zeros(len(tensors[name]))
    _write(llama, folder, tensors, {})
    make_mimo(folder, seed=0)
    return folder


def glm_of(llama: Path, folder: Path) -> Path:
    """GLM's dense layers, whose heads are turned whole; the MTP layer alone has experts."""
    config = json.loads((llama / "config.json").read_text())
    width, heads = config["hidden_size"], config["num_attention_heads"]
    number = config["num_hidden_layers"]
    more = {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_hidden_layers": number + 1,
        "head_dim": width // heads, "rope_parameters": {**config["rope_parameters"], "partial_rotary_factor": 1.0},
        "first_k_dense_replace": number, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "moe_intermediate_size": 256, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 1.0, "use_qk_norm": False,
    }  # fmt: skip
    tensors = load_file(llama / WEIGHTS_FILE)
    block, last = f"model.layers.{number - 1}.", f"model.layers.{number}."
    names = [name for name in tensors if name.startswith(block) and ".mlp." not in name]
    tensors |= {name.replace(block, last): torch.zeros_like(tensors[name]) for name in names}
    tensors |= {last + name: torch.zeros(shape) for name, shape in _expert_shapes(width, 8, 256).items()}
    _write(llama, folder, tensors, more)
    make_last_layer_mtp(folder, seed=0)
    return folder


def deepseek_beside(llama: Path, folder: Path) -> Path:
    """A random DeepSeek with the Llama's tokenizer: no Llama's heads can be latent.

    Its layers attend to nothing, so that what it says next hangs on the last token alone, which a draft can learn.
    """
    random_target(DEEPSEEK, llama, folder)
    tensors = load_file(folder / WEIGHTS_FILE)
    last = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    for layer in range(last):
        tensors[f"model.layers.{layer}.self_attn.o_proj.weight"].zero_()
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    return folder


def _expert_shapes(width: int, experts: int, wide: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "mlp.gate.weight": (experts, width),
        "mlp.gate.e_score_correction_bias": (experts,),
    }
    for expert in ("shared_experts", *(f"experts.{i}" for i in range(experts))):
        shapes |= {f"mlp.{expert}.{part}_proj.weight": (wide, width) for part in ("gate", "up")}
        shapes[f"mlp.{expert}.down_proj.weight"] = (width, wide)
    return shapes


def _write(llama: Path, folder: Path, tensors: dict[str, Tensor], more: dict[str, object]) -> None:
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    for file in llama.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((llama / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))
