"""The MTP layer of a DeepSeek-V3 or R1 target in PyTorch, equal to what SGLang's DeepseekV3ForCausalLMNextN computes.

Its attention is latent: keys and values of all heads come of a few numbers per token, which is what SGLang caches.
Here every head has its own, which is the same but for the order of sums.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Config, DeepseekV3DecoderLayer

from .nextn import NextnConfig, NextnDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig(NextnConfig):
    """Sizes and constants of an MTP layer: those of its target. Of `head_dim` nothing depends."""

    layer_config: ClassVar[Any] = DeepseekV3Config

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that rope turns, from the first on."""
        return int(self.layer.qk_rope_head_dim)


class DeepseekDraft(NextnDraft):
    """One layer of the target's kind, which shares the target's embedding and head."""

    config: DeepseekConfig

    def __init__(self, config: DeepseekConfig, embedding: Tensor, target_head: Tensor | None) -> None:
        """`embedding` and `target_head` are the target's, [vocab_size, hidden_size]. ConfigError for other shapes."""
        layer = DeepseekV3DecoderLayer(config.layer, config.layer.num_hidden_layers)
        # transformers leaves them at 1e-6 whatever the config says; SGLang does not.
        for norm in filter(None, (layer.self_attn.q_a_layernorm, layer.self_attn.kv_a_layernorm)):
            norm.variance_epsilon = config.rms_norm_eps
        super().__init__(config, layer, embedding, target_head)

    def _query_key_value_of(self, normed_BNH: Tensor) -> Tensor:
        layer = self.midlayer.self_attn
        rope = layer.qk_rope_head_dim
        nope = layer.qk_nope_head_dim
        if layer.q_lora_rank is None:
            query_BNX = layer.q_proj(normed_BNH)
        else:
            query_BNX = layer.q_b_proj(layer.q_a_layernorm(layer.q_a_proj(normed_BNH)))
        latent_BNL, turned_BNC = layer.kv_a_proj_with_mqa(normed_BNH).split([layer.kv_lora_rank, rope], -1)
        by_head = layer.kv_b_proj(layer.kv_a_layernorm(latent_BNL)).unflatten(-1, (layer.num_heads, -1))
        key_BNHC, value_BNHC = by_head.split([nope, layer.v_head_dim], -1)
        query_BNHC, query_turned_BNHC = query_BNX.unflatten(-1, (layer.num_heads, -1)).split([nope, rope], -1)
        turned_BNHC = turned_BNC[..., None, :].expand(*key_BNHC.shape[:-1], rope)
        # Attention divides by the root of the width; where YaRN stretches, more than that is asked for.
        scale = layer.scaling * layer.qk_head_dim**0.5
        heads = (
            torch.cat([self._pairs_apart(query_turned_BNHC), query_BNHC], -1) * scale,
            torch.cat([self._pairs_apart(turned_BNHC), key_BNHC], -1),
            value_BNHC,
        )
        return torch.cat([part.flatten(-2) for part in heads], -1)

    def _pairs_apart(self, x_BNHC: Tensor) -> Tensor:
        """Channels in the order in which `_rotated` turns pairs: the first ones of all pairs, then the second ones."""
        if not self.config.layer.rope_interleave:
            return x_BNHC
        return torch.cat([x_BNHC[..., ::2], x_BNHC[..., 1::2]], -1)

    def _query_key_value(self, x_BNX: Tensor, positions_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layer = self.midlayer.self_attn
        widths = (layer.qk_head_dim, layer.qk_head_dim, layer.v_head_dim)
        parts = torch.split(x_BNX, [layer.num_heads * width for width in widths], -1)
        query, key, value = (part.view(*part.shape[:2], layer.num_heads, -1).transpose(1, 2) for part in parts)
        return self._rotated(query, positions_BN), self._rotated(key, positions_BN), value
