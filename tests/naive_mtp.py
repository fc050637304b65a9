"""A small random MTP layer of a MiMo, and a slow decoder of it, one row, one head and one key at a time."""

from typing import Any

import numpy as np
from naive_draft import rms, rotated


def build_mtp(seed: int = 0, *, hidden: int = 16, vocab: int = 50) -> Any:
    """Every weight random, those of norms and biases too."""
    import torch
    from paceline.learner.model.mimo import MimoConfig, MimoDraft
    from paceline.learner.model.rope import Rope

    config = MimoConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        vocab_size=vocab,
        draft_vocab_size=vocab,
        rope=Rope(100.0),
        norm_output=True,
        shares_head=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        draft = MimoDraft(config, torch.randn(vocab, hidden), torch.randn(vocab, hidden))
        for name, parameter in draft.named_parameters():
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    return draft


def decode_mtp(
    draft: Any, tokens: np.ndarray, features: np.ndarray, root: int, fed: list[int], *, opens_text: bool = True
) -> list[np.ndarray]:
    """Logits of the round rooted at tokens[root]: of its first step, and of one step for every token of `fed`."""
    weights = {name: parameter.detach().double().numpy() for name, parameter in draft.named_parameters()}
    head = draft.lm_head.weight.double().numpy()
    cache: list[tuple[np.ndarray, np.ndarray]] = []
    for position in range(root):
        is_zero = opens_text and position == 0
        hidden = decode_row(
            draft, weights, cache, None if is_zero else int(tokens[position + 1]),
            hidden=features[position].astype(np.float64), position=position,
        )  # fmt: skip
    logits = [head @ hidden]
    for step, token in enumerate(fed, start=1):
        hidden = decode_row(draft, weights, cache, int(token), hidden=hidden, position=root - 1 + step)
        logits.append(head @ hidden)
    return logits


def decode_row(
    draft: Any, weights: dict[str, np.ndarray], cache: list, token: int | None, *, hidden: np.ndarray, position: int
) -> np.ndarray:
    """One row through the layer, `final_layernorm` included; its keys and values are added to `cache`."""
    config = draft.config
    layer = {name.removeprefix("midlayer."): weight for name, weight in weights.items()}
    embedded = np.zeros(config.hidden_size) if token is None else draft.embedding_WH[token].double().numpy()
    normed = rms(draft, layer["hidden_layernorm.weight"], hidden), rms(draft, layer["token_layernorm.weight"], embedded)
    residual = layer["input_proj.weight"] @ np.concatenate(normed)
    seen = rms(draft, layer["input_layernorm.weight"], residual)
    q, k, v = (
        (layer[f"self_attn.{name}_proj.weight"] @ seen + layer[f"self_attn.{name}_proj.bias"]).reshape(
            -1, config.head_dim
        )
        for name in ("q", "k", "v")
    )
    cache.append((np.array([rotated(head, position, config.rope) for head in k]), v))
    mixed = []
    for head, query in enumerate(q):
        turned = rotated(query, position, config.rope) / np.sqrt(config.head_dim)
        shared = head // (config.num_attention_heads // config.num_key_value_heads)
        shares = np.array([np.exp(turned @ keys[shared]) for keys, _ in cache])
        mixed.append(shares / shares.sum() @ np.array([values[shared] for _, values in cache]))
    residual = residual + layer["self_attn.o_proj.weight"] @ np.concatenate(mixed)
    normed_again = rms(draft, layer["post_attention_layernorm.weight"], residual)
    gate = layer["mlp.gate_proj.weight"] @ normed_again
    swish = gate / (1 + np.exp(-gate)) * (layer["mlp.up_proj.weight"] @ normed_again)
    return rms(draft, layer["norm.weight"], residual + layer["mlp.down_proj.weight"] @ swish)
