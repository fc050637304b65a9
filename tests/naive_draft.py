"""A small random EAGLE-3 draft, and a slow decoder of it that every fast one must agree with."""

from typing import Any

import numpy as np


def build_draft(
    seed: int = 0, *, hidden: int = 16, vocab: int = 50, draft_ids: list[int] | None = None, **changes: Any
) -> Any:
    """`changes` replace fields of the config; one with `shares_head` gets a random target head."""
    import torch
    from paceline.learner.model.eagle3 import Eagle3Config, Eagle3Draft
    from paceline.learner.model.rope import Rope

    config = Eagle3Config(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,  # not hidden / heads, as in Qwen3
        vocab_size=vocab,
        draft_vocab_size=len(draft_ids or range(vocab)),
        **{"rope": Rope(100.0), **changes},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        ids = None if draft_ids is None else torch.tensor(draft_ids)
        embedding = torch.randn(vocab, hidden)
        draft = Eagle3Draft(config, embedding, ids, torch.randn(vocab, hidden) if config.shares_head else None)
        for parameter in draft.parameters():
            torch.nn.init.normal_(parameter, mean=1.0 if parameter.dim() == 1 else 0.0, std=0.3)
    return draft


def decode_naively(
    draft: Any, tokens: np.ndarray, features: np.ndarray, root: int, steps: int, *, fed: list[int] | None = None
) -> tuple[list[int], list[np.ndarray]]:
    """Draft `steps` tokens from the round rooted at tokens[root]; return their target ids and the logits.

    Each step is fed the token drafted before it, or the tokens of `fed` instead.
    """
    weights, cache, hidden = read_naively(draft, tokens, features, root)
    head = draft.lm_head.weight.detach().double().numpy()
    drafted = []
    logits = []
    for step in range(steps):
        if step:
            token = drafted[-1] if fed is None else int(fed[step - 1])
            fed_back = rms(draft, weights["norm.weight"], hidden) if draft.config.norm_output else hidden
            hidden = decode_row(draft, weights, cache, token, hidden=fed_back, position=root - 1 + step)
        logits.append(head @ rms(draft, weights["norm.weight"], hidden))
        drafted.append(int(draft.draft_to_target_V[int(logits[-1].argmax())]))
    return drafted, logits


def read_naively(draft: Any, tokens: np.ndarray, features: np.ndarray, root: int) -> tuple[dict, list, np.ndarray]:
    """The draft's weights, its keys and values of every row before the root, and its output of the last one."""
    weights = {name: parameter.detach().double().numpy() for name, parameter in draft.named_parameters()}
    cache: list[tuple[np.ndarray, np.ndarray]] = []
    for row in range(root):
        hidden = weights["fc.weight"] @ normed_features(draft, weights, features[row].astype(np.float64))
        hidden = decode_row(draft, weights, cache, int(tokens[row + 1]), hidden=hidden, position=row)
    return weights, cache, hidden


def normed_features(draft: Any, weights: dict[str, np.ndarray], row: np.ndarray) -> np.ndarray:
    """What `fc` takes: the whole row normed, then the part of every target layer by itself."""
    if draft.config.norm_before_fc:
        row = rms(draft, weights["input_norm.weight"], row)
    if not draft.config.fc_norm:
        return row
    parts = np.split(row, draft.config.feature_layers)
    return np.concatenate([rms(draft, weights[f"fc_norm.{i}.weight"], part) for i, part in enumerate(parts)])


def decode_row(
    draft: Any, weights: dict[str, np.ndarray], cache: list, token: int, *, hidden: np.ndarray, position: int
) -> np.ndarray:
    """One row through the decoder layer; its keys and values are added to `cache`."""
    config = draft.config
    layer = {n.removeprefix("midlayer."): w for n, w in weights.items()}
    embedded = rms(draft, layer["input_layernorm.weight"], draft.embedding_WH[token].double().numpy())
    seen = np.concatenate([embedded, rms(draft, layer["hidden_norm.weight"], hidden)])
    q, k, v = ((layer[f"self_attn.{name}_proj.weight"] @ seen).reshape(-1, config.head_dim) for name in ("q", "k", "v"))
    cache.append((np.array([rotated(head, position, config.rope) for head in k]), v))
    shared_by = config.num_attention_heads // config.num_key_value_heads
    mixed = []
    for head, query in enumerate(q):
        turned = rotated(query, position, config.rope) / np.sqrt(config.head_dim)
        shares = np.array([np.exp(turned @ keys[head // shared_by]) for keys, _ in cache])
        values = np.array([values[head // shared_by] for _, values in cache])
        mixed.append(shares / shares.sum() @ values)
    hidden = hidden + layer["self_attn.o_proj.weight"] @ np.concatenate(mixed)
    normed = rms(draft, layer["post_attention_layernorm.weight"], hidden)
    gate = layer["mlp.gate_proj.weight"] @ normed
    swish = gate / (1 + np.exp(-gate)) * (layer["mlp.up_proj.weight"] @ normed)
    return hidden + layer["mlp.down_proj.weight"] @ swish


def rms(draft: Any, weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    return weight * x / np.sqrt(np.mean(x * x) + draft.config.rms_norm_eps)


def rotated(head: np.ndarray, position: int, rope: Any) -> np.ndarray:
    """Channel i and channel i + C/2 are one complex number, turned by position * theta^(-2i/C) without scaling."""
    half = len(head) // 2
    turn = rope.rope_theta ** (-np.arange(half) / half)
    growth = 1.0
    if rope.kind != "default":
        turn, growth = scaled_turn(rope.settings(), len(head))
    turned = growth * (head[:half] + 1j * head[half:]) * np.exp(1j * position * turn)
    return np.concatenate([turned.real, turned.imag])


def scaled_turn(settings: dict[str, Any], channels: int) -> tuple[np.ndarray, float]:
    """Turn of every channel pair and what it grows by, as transformers computes them."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    made = LlamaConfig(hidden_size=channels, num_attention_heads=1, rope_parameters=dict(settings))
    turn, growth = ROPE_INIT_FUNCTIONS[settings["rope_type"]](made, "cpu")
    return turn.double().numpy(), growth
