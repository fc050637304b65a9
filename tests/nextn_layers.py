"""Small random MTP layers with experts, and transformers' own decoder layer run over one round at a time."""

import json
from pathlib import Path
from typing import Any

WORDS, WIDTH, LAYERS, EXPERTS = 50, 16, 4, 4

_COMMON = {
    "hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "vocab_size": WORDS, "n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
    "n_shared_experts": 1, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
    "rms_norm_eps": 1e-3, "max_position_embeddings": 64,
}  # fmt: skip
#: Family -> its config.json.
FAMILIES: dict[str, dict[str, Any]] = {
    "GLM-4.5": _COMMON
    | {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_key_value_heads": 2, "head_dim": 8,
        "use_qk_norm": True, "attention_bias": True, "partial_rotary_factor": 0.5, "rope_theta": 100.0,
    },
    "DeepSeek-V3": _COMMON
    | {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_key_value_heads": 4,
        "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5,
        "rope_theta": 100.0,
        "rope_scaling": {
            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4, "beta_slow": 1,
            "mscale": 1.0, "mscale_all_dim": 0.5,
        },
    },
}  # fmt: skip


def layer_tensors(family: str) -> dict[str, Any]:
    """The layer as a checkpoint of the target has it, every weight random, those of norms and biases too."""
    import torch

    made = {}
    generator = torch.Generator().manual_seed(0)
    for name, shape in sorted(_shapes(FAMILIES[family]).items()):
        noise = 0.3 * torch.randn(shape, generator=generator)
        made[f"model.layers.{LAYERS}.{name}"] = 1.0 + noise if "norm" in name else noise
    return made


def _shapes(c: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    heads, wide = c["num_attention_heads"], c["moe_intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {"eh_proj.weight": (WIDTH, 2 * WIDTH), "mlp.gate.weight": (EXPERTS, WIDTH)}
    shapes["mlp.gate.e_score_correction_bias"] = (EXPERTS,)
    norms = ("enorm", "hnorm", "shared_head.norm", "input_layernorm", "post_attention_layernorm")
    shapes |= {f"{norm}.weight": (WIDTH,) for norm in norms}
    for expert in ("shared_experts", *(f"experts.{i}" for i in range(EXPERTS))):
        shapes |= {f"mlp.{expert}.{part}_proj.weight": (wide, WIDTH) for part in ("gate", "up")}
        shapes[f"mlp.{expert}.down_proj.weight"] = (WIDTH, wide)
    if "kv_lora_rank" not in c:
        inner, kv_inner = heads * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
        for part, width in (("q", inner), ("k", kv_inner), ("v", kv_inner)):
            shapes |= {f"self_attn.{part}_proj.weight": (width, WIDTH), f"self_attn.{part}_proj.bias": (width,)}
        shapes |= {f"self_attn.{part}_norm.weight": (c["head_dim"],) for part in "qk"}
        return shapes | {"self_attn.o_proj.weight": (WIDTH, inner)}
    rank, kv_rank, nope, rope, value = (
        c[name] for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    return shapes | {
        "self_attn.q_a_proj.weight": (rank, WIDTH), "self_attn.q_a_layernorm.weight": (rank,),
        "self_attn.q_b_proj.weight": (heads * (nope + rope), rank),
        "self_attn.kv_a_proj_with_mqa.weight": (kv_rank + rope, WIDTH), "self_attn.kv_a_layernorm.weight": (kv_rank,),
        "self_attn.kv_b_proj.weight": (heads * (nope + value), kv_rank),
        "self_attn.o_proj.weight": (WIDTH, heads * value),
    }  # fmt: skip


def build(family: str, folder: Path) -> Any:
    """The layer of `layer_tensors`, read from `folder`, where it is written."""
    import torch
    from paceline.learner.model.draft_io import load_draft
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(layer_tensors(family), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(FAMILIES[family]))
    generator = torch.Generator().manual_seed(1)
    embedding, head = torch.randn((2, WORDS, WIDTH), generator=generator)
    return load_draft(folder, embedding, lambda: head)


def decode(draft: Any, tokens: Any, features: Any, root: int, steps: int) -> list[Any]:
    """Logits of the round rooted at tokens[root], fed the tokens after it as far as there are any.

    Every step runs transformers' layer over all rows up to its own again: true ones, then those fed its own outputs.
    """
    import torch

    hidden = features[:root]
    logits = []
    for step in range(min(steps, len(tokens) - root)):
        rows = root + step
        out = _layer(draft, tokens[1 : rows + 1], hidden)[-1:]
        logits.append(draft.lm_head(out)[0].detach())
        hidden = torch.cat([hidden, out])
    return logits


def _layer(draft: Any, tokens: Any, hidden: Any) -> Any:
    import torch
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding
    from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeRotaryEmbedding

    config = draft.config.layer
    config._attn_implementation = "eager"
    rotary = (Glm4MoeRotaryEmbedding if config.model_type == "glm4_moe" else DeepseekV3RotaryEmbedding)(config)
    rows = len(tokens)
    both = draft.enorm(draft.embedding_WH[tokens]), draft.hnorm(hidden)
    x = draft.eh_proj(torch.cat(both, -1))[None]
    later = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
    turned = rotary(x, torch.arange(rows)[None])
    return draft.norm(draft.midlayer(x, attention_mask=later, position_embeddings=turned))[0]
