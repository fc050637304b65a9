"""A small random DFLASH draft, and a slow decoder of it: one place, one head and one key at a time."""

from typing import Any

import numpy as np
from naive_draft import rms, rotated


def build_dflash(seed: int = 0, *, hidden: int = 16, vocab: int = 50, block: int = 5) -> Any:
    """Every weight random, those of norms too."""
    import torch
    from paceline.learner.model.dflash import DflashDraft
    from paceline.learner.model.dflash_config import DflashConfig
    from paceline.learner.model.rope import Rope

    config = DflashConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        vocab_size=vocab,
        draft_vocab_size=vocab,
        rope=Rope(100.0),
        shares_head=True,
        layers=2,
        block_size=block,
        mask_token_id=3,
        layer_ids=(0, 2),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        draft = DflashDraft(config, torch.randn(vocab, hidden), torch.randn(vocab, hidden))
        for name, parameter in draft.named_parameters():
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    return draft


def draft_block(draft: Any, root_token: int, features: np.ndarray) -> list[np.ndarray]:
    """Logits of every place after the root, which stands behind the tokens of `features`."""
    config = draft.config
    weights = {name: parameter.detach().double().numpy() for name, parameter in draft.named_parameters()}
    table = draft.embedding_WH.double().numpy()
    head = draft.lm_head.weight.double().numpy()
    context = [rms(draft, weights["hidden_norm.weight"], weights["fc.weight"] @ row) for row in features.astype(float)]
    block = [table[root_token], *[table[config.mask_token_id]] * (config.block_size - 1)]
    for at in range(config.layers):
        layer = {
            name.removeprefix(f"layers.{at}."): weight
            for name, weight in weights.items()
            if name.startswith(f"layers.{at}.")
        }
        block = decode_layer(draft, layer, context, block)
    return [head @ rms(draft, weights["norm.weight"], hidden) for hidden in block[1:]]


def decode_layer(draft: Any, layer: dict[str, np.ndarray], context: list, block: list) -> list[np.ndarray]:
    """The block's hidden states after one layer."""
    config = draft.config
    seen = [rms(draft, layer["input_layernorm.weight"], hidden) for hidden in block]
    # Keys and values are made of the features as they are, and of the block's own states behind them.
    keys, values = [], []
    for position, read in enumerate([*context, *seen]):
        k = (layer["self_attn.k_proj.weight"] @ read).reshape(-1, config.head_dim)
        normed = (rms(draft, layer["self_attn.k_norm.weight"], head) for head in k)
        keys.append([rotated(head, position, config.rope) for head in normed])
        values.append((layer["self_attn.v_proj.weight"] @ read).reshape(-1, config.head_dim))
    out = []
    for place, hidden in enumerate(block):
        mixed = []
        queries = (layer["self_attn.q_proj.weight"] @ seen[place]).reshape(-1, config.head_dim)
        for head, query in enumerate(queries):
            normed = rms(draft, layer["self_attn.q_norm.weight"], query)
            turned = rotated(normed, len(context) + place, config.rope) / np.sqrt(config.head_dim)
            shared = head // (config.num_attention_heads // config.num_key_value_heads)
            shares = np.array([np.exp(turned @ key[shared]) for key in keys])
            mixed.append(shares / shares.sum() @ np.array([value[shared] for value in values]))
        residual = hidden + layer["self_attn.o_proj.weight"] @ np.concatenate(mixed)
        normed_again = rms(draft, layer["post_attention_layernorm.weight"], residual)
        gate = layer["mlp.gate_proj.weight"] @ normed_again
        swish = gate / (1 + np.exp(-gate)) * (layer["mlp.up_proj.weight"] @ normed_again)
        out.append(residual + layer["mlp.down_proj.weight"] @ swish)
    return out
