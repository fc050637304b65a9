"""The MTP layer of a MiMo target in PyTorch, equal to what SGLang's MiMoMTP computes while it drafts.

Axes and rows as in chain_draft.py. A feature row is the target's last hidden state, after its final norm.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...buffer.drafts.mtp_layer import MIMO, layer_names
from .chain_draft import ChainDraft, WayIn
from .decoder_layer import DecoderLayer
from .draft_config import DraftConfig, check_activation, sizes_of
from .rope import rope_from

_PREFIX = layer_names({"architectures": [MIMO]}).prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoConfig(DraftConfig):
    """Sizes and constants of an MTP layer: those of its target."""

    @property
    def feature_width(self) -> int:
        """Numbers in one feature row: the target's last hidden state."""
        return self.hidden_size

    def _named(self) -> dict[str, Any]:
        return {"architectures": [MIMO], "model_type": "qwen2", "hidden_act": "silu"}

    @classmethod
    def _of(cls, source: Mapping[str, Any]) -> Self:
        check_activation(source)
        sizes = sizes_of(source)
        words = sizes["vocab_size"]
        fixed: dict[str, Any] = {"draft_vocab_size": words, "norm_output": True, "shares_head": True}
        return cls(**sizes, **fixed, rope=rope_from(source), source=source)


class MimoDraft(ChainDraft):
    """One layer of the target's kind, which shares the target's embedding and head."""

    config: MimoConfig
    midlayer: DecoderLayer

    def __init__(self, config: MimoConfig, embedding: Tensor, target_head: Tensor | None) -> None:
        """`embedding` and `target_head` are the target's, [vocab_size, hidden_size]. ConfigError for other shapes."""
        super().__init__()
        self.config = config
        self.token_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.input_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = DecoderLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._share(embedding, None, target_head)
        self._parameters_of = {_file_name(name): name for name, _ in self.named_parameters()}
        self.file_dtypes = dict.fromkeys(self._parameters_of, torch.float32)

    def parameter_of(self, name: str) -> str:
        """Name of the parameter that a checkpoint of the target calls `name`."""
        return self._parameters_of.get(name, name)

    def _first_hidden(self, features_BRD: Tensor) -> Tensor:
        return features_BRD

    def _way_in(self, tokens_BT: Tensor, opens_text_B: Tensor | None) -> WayIn:
        # The input projection is linear in [hidden, embedding]: the embedding's half is the same at every step.
        weight_HH = self.input_proj.weight
        width = self.config.hidden_size
        embedded_BTH = self.token_layernorm(functional.embedding(tokens_BT, self.embedding_WH))
        tokens_BTH = functional.linear(embedded_BTH, weight_HH[:, width:])
        # At the text's position 0 SGLang feeds an embedding of zeros. That row, and none but it, takes token 1.
        opens_text_B = torch.ones_like(tokens_BT[:, 0], dtype=torch.bool) if opens_text_B is None else opens_text_B
        is_second_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device) == 1
        tokens_BTH = tokens_BTH.masked_fill((opens_text_B[:, None] & is_second_T)[..., None], 0.0)
        layer = self.midlayer.self_attn
        weight_XH = torch.cat([layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight])
        bias_X = torch.cat([layer.q_proj.bias, layer.k_proj.bias, layer.v_proj.bias])
        return WayIn(tokens_BTH, (weight_HH[:, :width], weight_XH, bias_X))

    def _enter(self, way_in: WayIn, tokens_BNY: Tensor, hidden_BNH: Tensor) -> tuple[Tensor, Tensor]:
        hidden_weight_HH, weight_XH, bias_X = way_in.weights
        projected_BNH = functional.linear(self.hidden_layernorm(hidden_BNH), hidden_weight_HH)
        residual_BNH = (tokens_BNY + projected_BNH).float()
        return functional.linear(self.midlayer.input_layernorm(residual_BNH), weight_XH, bias_X), residual_BNH


def _file_name(parameter: str) -> str:
    """What SGLang's MiMoMTP reads a parameter of the draft by."""
    return _PREFIX + ("final_layernorm.weight" if parameter == "norm.weight" else parameter.removeprefix("midlayer."))
