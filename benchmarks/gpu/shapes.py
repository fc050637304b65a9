"""Targets by their shape alone, which SGLang fills with random weights (`--load-format dummy`), and random drafts."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file

from ...buffer.board.weights_file import WEIGHTS_FILE
from ...learner.disk import write_folder
from ...learner.model.eagle3 import Eagle3Draft
from ...learner.model.eagle3_config import Eagle3Config
from ...rig.models.target import TargetModel

_CONFIG = "config.json"
_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def _llama(vocabulary: int, width: int, *, layers: int, heads: int, kv_heads: int, inner: int) -> Mapping[str, Any]:
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
    }
    return MappingProxyType({**_LLAMA, **sizes})


#: By name: the config of the target, and how many tokens its draft may propose.
SHAPES: Mapping[str, tuple[Mapping[str, Any], int]] = MappingProxyType(
    {
        "tiny": (_llama(2048, 256, layers=8, heads=4, kv_heads=2, inner=704), 2048),
        "smollm2-135m": (_llama(49152, 576, layers=30, heads=9, kv_heads=3, inner=1536), 49152),
        "llama-3.1-8b": (_llama(128256, 4096, layers=32, heads=32, kv_heads=8, inner=14336), 32000),
    }
)


def shaped_target(folder: Path, shape: str) -> TargetModel:
    """A folder with the config alone: its weights are SGLang's to make."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(json.dumps(dict(SHAPES[shape][0])), encoding="utf-8")
    return TargetModel(folder, shape, {}, 0)


def random_draft(folder: Path, shape: str, seed: int) -> Path:
    """An EAGLE-3 draft of random bfloat16 weights for a target of this shape; left as it is where it exists."""
    if not folder.exists():
        write_folder(folder, lambda place: _write(place, shape, seed))
    return folder


def _write(folder: Path, shape: str, seed: int) -> None:
    target, words = SHAPES[shape]
    layers = target["num_hidden_layers"]
    aux_layers = [1, layers // 2 - 1, layers - 4]
    eagle = {"eagle_aux_hidden_state_layer_ids": aux_layers, "use_aux_hidden_state": True}
    own = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": words}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _CONFIG).write_text(json.dumps({**target, **own, "eagle_config": eagle}), encoding="utf-8")
    ids_V = torch.linspace(0, target["vocab_size"] - 1, words).long()
    with torch.device("meta"):
        embedding = torch.empty(target["vocab_size"], target["hidden_size"])
    draft = Eagle3Draft(Eagle3Config.from_json(folder / _CONFIG), embedding, ids_V)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.empty(weight.shape, dtype=torch.bfloat16).normal_(std=0.02, generator=generator)
        for name, weight in draft.named_parameters()
    }
    if draft.has_vocabulary_map:
        tensors["d2t"] = ids_V - torch.arange(words)
        tensors["t2d"] = torch.zeros(target["vocab_size"], dtype=torch.bool).index_fill_(0, ids_V, True)
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
