"""An untrained DFLASH draft of a small target, which drafts a whole block in one forward."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from ...buffer.drafts.block_draft import ARCHITECTURE
from ...buffer.drafts.checkpoint import CONFIG_FILE
from ...learner.model.dflash import DflashDraft
from ...learner.model.dflash_config import DflashConfig
from ...learner.model.draft_io import load_target_embedding, load_target_head, save_draft, target_config

BLOCK = 4
_LAYERS = 2
#: Of untrained logits, which should say nearly nothing.
_LOGIT_DEVIATION = 0.25


def untrained_blocks(target: Path, folder: Path, *, seed: int, layer_ids: Sequence[int], block: int = BLOCK) -> str:
    """Write it into `folder`, which is made if absent; return the sha256 of its weights file.

    `layer_ids` i mean the output of target layer i. The mask is token 0.
    """
    own = target_config(target)
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    source = {name: own[name] for name in sizes} | {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "head_dim": own["hidden_size"] // own["num_attention_heads"],
        "rms_norm_eps": own["rms_norm_eps"],
        "max_position_embeddings": own["max_position_embeddings"],
        "num_hidden_layers": _LAYERS,
        "num_target_layers": own["num_hidden_layers"],
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        "block_size": block,
        "dflash_config": {"mask_token_id": 0, "target_layer_ids": [*layer_ids]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(source), encoding="utf-8")
    head = load_target_head(target)
    draft = DflashDraft(DflashConfig.from_json(folder / CONFIG_FILE), load_target_embedding(target), head)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02, generator=generator)
        draft.norm.weight.fill_(_LOGIT_DEVIATION / head.square().sum(1).mean().sqrt())
    return save_draft(draft, folder)
