"""EAGLE-3 draft in PyTorch, equal to what SGLang's LlamaForCausalLMEagle3 computes while it drafts.

Axes and rows as in chain_draft.py.
"""

from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from .chain_draft import ChainDraft, WayIn
from .decoder_layer import Midlayer
from .eagle3_config import Eagle3Config

__all__ = ["Eagle3Config", "Eagle3Draft"]

#: Names that SGLang takes for others, by how they begin.
_OLD_NAMES = MappingProxyType(
    {
        "layers.0.": "midlayer.",
        "aux_norm_low.": "fc_norm.0.",
        "aux_norm_mid.": "fc_norm.1.",
        "aux_norm_high.": "fc_norm.2.",
    }
)


class Eagle3Draft(ChainDraft):
    """The draft head. Its parameters carry the names of SGLang's weights file."""

    config: Eagle3Config
    midlayer: Midlayer

    def __init__(
        self,
        config: Eagle3Config,
        embedding: Tensor,
        draft_to_target: Tensor | None = None,
        target_head: Tensor | None = None,
    ) -> None:
        """`embedding` is the target's, [vocab_size, hidden_size], and so is `target_head`, for a draft that shares it.

        `draft_to_target` gives the target id of every draft id and may be left out when the vocabularies are the same.
        ConfigError when shapes do not fit.
        """
        super().__init__()
        self.config = config
        self.input_norm = _norm(config, config.feature_width) if config.norm_before_fc else None
        self.fc_norm = _layer_norms(config) if config.fc_norm else None
        self.fc = nn.Linear(config.feature_width, config.hidden_size, bias=False)
        self.midlayer = Midlayer(config)
        self.norm = _norm(config, config.hidden_size)
        self._share(embedding, draft_to_target, target_head)

    def parameter_of(self, name: str) -> str:
        """Name of the parameter that a weights file calls `name`: older names too, with or without `model.`."""
        name = name.removeprefix("model.")
        old = next((old for old in _OLD_NAMES if name.startswith(old)), "")
        return _OLD_NAMES.get(old, "") + name.removeprefix(old)

    def _first_hidden(self, features_BRD: Tensor) -> Tensor:
        # The residual stream stays float32 under autocast, as the norms need it.
        hidden_BRH: Tensor = self.fc(self._normed_features(features_BRD)).float()
        return hidden_BRH

    def _way_in(self, tokens_BT: Tensor, _opens_text_B: Tensor | None) -> WayIn:
        # Projections are linear in [embedding, hidden]: the embedding's half is the same at every step.
        layer = self.midlayer.self_attn
        weight_XH = torch.cat([layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight])
        width = self.config.hidden_size
        embedded_BTH = self.midlayer.input_layernorm(functional.embedding(tokens_BT, self.embedding_WH))
        return WayIn(functional.linear(embedded_BTH, weight_XH[:, :width]), (weight_XH[:, width:],))

    def _enter(self, way_in: WayIn, tokens_BNY: Tensor, hidden_BNH: Tensor) -> tuple[Tensor, Tensor]:
        (hidden_weight_XH,) = way_in.weights
        hidden_qkv_BNX = functional.linear(self.midlayer.hidden_norm(hidden_BNH), hidden_weight_XH)
        return tokens_BNY + hidden_qkv_BNX, hidden_BNH

    def _normed_features(self, features_BRD: Tensor) -> Tensor:
        """Features as `fc` takes them; the hidden state that a step hands to the next one passes by these norms."""
        if self.input_norm is not None:
            features_BRD = self.input_norm(features_BRD)
        if self.fc_norm is None:
            return features_BRD
        parts = features_BRD.chunk(len(self.fc_norm), dim=-1)
        return torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)


def _norm(config: Eagle3Config, width: int) -> nn.RMSNorm:
    return nn.RMSNorm(width, eps=config.rms_norm_eps)


def _layer_norms(config: Eagle3Config) -> nn.ModuleList:
    return nn.ModuleList([_norm(config, config.hidden_size) for _ in range(config.feature_layers)])
