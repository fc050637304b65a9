"""The MTP layer of a GLM-4.5, 4.6 or 4.7 target in PyTorch, equal to what SGLang's Glm4MoeForCausalLMNextN computes."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeConfig, Glm4MoeDecoderLayer

from .nextn import NextnConfig, NextnDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class GlmConfig(NextnConfig):
    """Sizes and constants of an MTP layer: those of its target."""

    layer_config: ClassVar[Any] = Glm4MoeConfig

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that rope turns, from the first on."""
        return int(self.head_dim * self.layer.rope_parameters["partial_rotary_factor"])


class GlmDraft(NextnDraft):
    """One layer of the target's kind, which shares the target's embedding and head."""

    config: GlmConfig

    def __init__(self, config: GlmConfig, embedding: Tensor, target_head: Tensor | None) -> None:
        """`embedding` and `target_head` are the target's, [vocab_size, hidden_size]. ConfigError for other shapes."""
        layer = Glm4MoeDecoderLayer(config.layer, config.layer.num_hidden_layers)
        super().__init__(config, layer, embedding, target_head)

    def _query_key_value_of(self, normed_BNH: Tensor) -> Tensor:
        layer = self.midlayer.self_attn
        query_BNX, key_BNX, value_BNX = (project(normed_BNH) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
        if layer.use_qk_norm:
            query_BNX = self._normed(layer.q_norm, query_BNX)
            key_BNX = self._normed(layer.k_norm, key_BNX)
        return torch.cat([query_BNX, key_BNX, value_BNX], -1)

    def _normed(self, norm: torch.nn.Module, heads_BNX: Tensor) -> Tensor:
        """Each head by itself."""
        normed_BNHC: Tensor = norm(heads_BNX.view(*heads_BNX.shape[:2], -1, self.config.head_dim))
        return normed_BNHC.flatten(-2)
