"""Small targets of several families in the layout of Hugging Face, and drafts in the forms that people publish."""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from ...buffer.board.speculation import NGRAM
from ...buffer.board.weights_file import WEIGHTS_FILE
from ...buffer.drafts.single_file import draft_folder
from ...learner.model.draft_io import random_draft, target_config
from ...rig.models.target import DRAFT_LAYERS
from .dflash import untrained_blocks
from .mtp import make_last_layer_mtp, make_mimo
from .rows import (
    BFLOAT16,
    BLOCKS,
    DEEPSEEK,
    EAGLE_3_1,
    FOLDER,
    GLM,
    HALF_VOCABULARY,
    HEAD,
    HUB_ID,
    LAYER_ALONE,
    LLAMA_3,
    MIMO,
    MTP,
)

_SEED = 0
_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_SIZES: Mapping[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 1e4,
}  # fmt: skip
_EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1,
    "routed_scaling_factor": 2.5, "first_k_dense_replace": 1,
}  # fmt: skip
#: On a CPU SGLang turns channels of latent attention by YaRN alone. transformers has no defaults of the first three.
_LATENTS = {
    "moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_group": 2, "topk_group": 1,
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 24,
    "v_head_dim": 16,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512,
        "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.5,
    },
}  # fmt: skip
#: Family -> model type of transformers, and its settings beside _SIZES.
_FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    LLAMA_3: ("llama", {"rope_parameters": _LLAMA3}),
    "Qwen2.5": ("qwen2", {}),
    "Qwen3": ("qwen3", {}),
    "Qwen3 MoE": ("qwen3_moe", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}),
    "Mistral": ("mistral", {"sliding_window": None}),
    "Gemma 3": ("gemma3_text", {"tie_word_embeddings": True}),
    "Phi-3 and Phi-4": ("phi3", {}),
    "gpt-oss": (
        "gpt_oss",
        {"num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 131072},
    ),
    MIMO: ("qwen2", {}),  # and an MTP layer
    GLM: ("glm4_moe", {**_EXPERTS, "use_qk_norm": True, "attention_bias": True, "num_hidden_layers": 5}),
    DEEPSEEK: ("deepseek_v3", {**_EXPERTS, **_LATENTS, "num_hidden_layers": 5}),
}
#: What makes the target of a family one with an MTP layer.
_WITH_LAYER: Mapping[str, Callable[[Path, int], None]] = {
    MIMO: make_mimo,
    GLM: make_last_layer_mtp,
    DEEPSEEK: make_last_layer_mtp,
}


def random_target(family: str, tokenizer_of: Path, folder: Path) -> Path:
    """A random target of the family in `folder`, made there if absent, with the tokenizer of another target."""
    if folder.exists():
        return folder
    kind, more = _FAMILIES[family]
    words = target_config(tokenizer_of)["vocab_size"]
    torch.manual_seed(_SEED)
    config = AutoConfig.for_model(kind, **{**_SIZES, "vocab_size": words, "dtype": "float32", **more})
    disable_progress_bar()  # it would be drawn across our own
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    if family in _WITH_LAYER:
        _WITH_LAYER[family](folder, _SEED)
    for file in tokenizer_of.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def untrained_draft(head: str, target: Path, folder: Path) -> Path:
    """An untrained draft of the target with this head, as one file in `folder`, which must be new."""
    _HEADS[head](target, folder)
    return folder


def _plain(target: Path, folder: Path, dtype: str = "float32") -> None:
    random_draft(target, folder, _SEED, layer_ids=DRAFT_LAYERS, dtype=dtype)


def _of_half_the_vocabulary(target: Path, folder: Path) -> None:
    words = target_config(target)["vocab_size"]
    random_draft(target, folder, _SEED, layer_ids=DRAFT_LAYERS, draft_ids=range(0, words, 2))


def _with_more_norms(target: Path, folder: Path) -> None:
    """EAGLE-3.1: one norm for each target layer, none of them 1 everywhere, and steps that are fed normed outputs."""
    _plain(target, folder)
    file = folder / "config.json"
    generator = torch.Generator().manual_seed(_SEED)
    config = json.loads(file.read_text(encoding="utf-8")) | {"fc_norm": True, "norm_output": True}
    file.write_text(json.dumps(config), encoding="utf-8")
    width = (config["hidden_size"],)
    norms = {f"fc_norm.{i}.weight": torch.rand(width, generator=generator) + 0.5 for i in range(len(DRAFT_LAYERS))}
    save_file(load_file(folder / WEIGHTS_FILE) | norms, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def _mtp_layer(target: Path, folder: Path) -> None:
    shutil.copytree(draft_folder(target, folder.parent / "layers"), folder)


def _blocks(target: Path, folder: Path) -> None:
    untrained_blocks(target, folder, seed=_SEED, layer_ids=DRAFT_LAYERS)


_HEADS: Mapping[str, Callable[[Path, Path], None]] = {
    HEAD: _plain,
    EAGLE_3_1: _with_more_norms,
    BFLOAT16: partial(_plain, dtype="bfloat16"),
    HALF_VOCABULARY: _of_half_the_vocabulary,
    MTP: _mtp_layer,
    BLOCKS: _blocks,
    NGRAM: lambda _target, folder: folder.mkdir(parents=True),
}


def _as_it_is(draft: Path, _: Path) -> str:
    return str(draft)


def _in_shards(draft: Path, folder: Path) -> str:
    tensors = sorted(load_file(draft / WEIGHTS_FILE).items())
    listed: dict[str, str] = {}
    for i, part in enumerate((tensors[::2], tensors[1::2]), start=1):
        file = f"model-0000{i}-of-00002.safetensors"
        save_file(dict(part), folder / file)
        listed |= {name: file for name, _ in part}
    index = {"metadata": {}, "weight_map": listed}
    (folder / f"{WEIGHTS_FILE}.index.json").write_text(json.dumps(index), encoding="utf-8")
    return _with_config(draft, folder)


def _pickled(draft: Path, folder: Path) -> str:
    torch.save(load_file(draft / WEIGHTS_FILE), folder / "pytorch_model.bin")
    return _with_config(draft, folder)


def _in_the_hub_cache(draft: Path, folder: Path) -> str:
    home = folder / "models--someone--eagle3"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(_COMMIT, encoding="utf-8")
    shutil.copytree(draft, home / "snapshots" / _COMMIT)
    return "someone/eagle3"


def _with_config(draft: Path, folder: Path) -> str:
    shutil.copy(draft / "config.json", folder)
    return str(folder)


_FORMS: Mapping[str, Callable[[Path, Path], str]] = {
    FOLDER: _as_it_is,
    "safetensors in shards": _in_shards,
    "pytorch_model.bin": _pickled,
    HUB_ID: _in_the_hub_cache,
    LAYER_ALONE: _as_it_is,
}


def published(form: str, draft: Path, folder: Path) -> tuple[str, dict[str, str]]:
    """What `--speculative-draft-model-path` names a draft by in this form, and the environment in which it is found.

    `folder` is made and must be new; `draft` itself stays as it is.
    """
    folder.mkdir(parents=True)
    offline = {"HF_HUB_CACHE": str(folder), "HF_HUB_OFFLINE": "1", "PACELINE_CACHE_DIR": str(folder / "paceline")}
    return _FORMS[form](draft, folder), offline
