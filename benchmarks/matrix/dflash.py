"""An untrained DFLASH draft of a small target, which drafts a whole block in one forward."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

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
    config = DflashConfig(
        hidden_size=own["hidden_size"],
        intermediate_size=own["intermediate_size"],
        num_attention_heads=own["num_attention_heads"],
        num_key_value_heads=own["num_key_value_heads"],
        head_dim=own["hidden_size"] // own["num_attention_heads"],
        vocab_size=own["vocab_size"],
        draft_vocab_size=own["vocab_size"],
        shares_head=True,
        layers=_LAYERS,
        block_size=block,
        mask_token_id=0,
        layer_ids=tuple(layer_ids),
    )
    head = load_target_head(target)
    draft = DflashDraft(config, load_target_embedding(target), head)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02, generator=generator)
        draft.norm.weight.fill_(_LOGIT_DEVIATION / head.square().sum(1).mean().sqrt())
    return save_draft(draft, folder)
