"""An MTP layer whose feed-forward half are experts, of the form that DeepSeek gave it, made of transformers' modules.

Axes and rows as in chain_draft.py. A feature row is the target's last hidden state, after its final norm.
Everything learns but the router: which expert a token goes to was balanced while the target was trained, by a bias and
losses that no learner has, and experts that share a GPU's work rely on it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...buffer.drafts.mtp_layer import layer_names
from .chain_draft import ChainDraft, WayIn
from .draft_config import DraftConfig, check_activation, size_of, sizes_of
from .rope import rope_from

#: Parameters that transformers keeps of all experts in one.
_GATE_UP = "midlayer.mlp.experts.gate_up_proj"
_DOWN = "midlayer.mlp.experts.down_proj"
_BIAS = "midlayer.mlp.gate.e_score_correction_bias"
#: Beside the decoder layer, SGLang's names are ours but for this one's.
_NORM = {"norm.weight": "shared_head.norm.weight"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NextnConfig(DraftConfig):
    """Sizes and constants of an MTP layer: those of its target."""

    #: transformers' class of the target's config.
    layer_config: ClassVar[Any]

    layer: Any  # as transformers has it

    @property
    def feature_width(self) -> int:
        """Numbers in one feature row: the target's last hidden state."""
        return self.hidden_size

    def _named(self) -> dict[str, Any]:
        return {}  # the target's config is always there

    @classmethod
    def _of(cls, source: Mapping[str, Any]) -> Self:
        check_activation(source)
        layer_names(source)
        size_of(source, "n_routed_experts")
        sizes = sizes_of(source)
        fixed: dict[str, Any] = {"draft_vocab_size": sizes["vocab_size"], "norm_output": True, "shares_head": True}
        # A copy: transformers writes into tables that it is given. Its other ways of running experts are for GPUs.
        layer = cls.layer_config(**deepcopy(dict(source)), experts_implementation="eager")
        return cls(**sizes, **fixed, rope=rope_from(source), layer=layer, source=source)


class NextnDraft(ChainDraft):
    """One layer of the target's kind, which shares the target's embedding and head."""

    config: NextnConfig
    midlayer: Any  # transformers' own, which has no types

    def __init__(self, config: NextnConfig, layer: nn.Module, embedding: Tensor, target_head: Tensor | None) -> None:
        """`layer` is transformers' decoder layer of the target, with experts; its weights are to be loaded.

        `embedding` and `target_head` are the target's, [vocab_size, hidden_size]. ConfigError for other shapes.
        """
        super().__init__()
        self.config = config
        self.enorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hnorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = layer
        self.midlayer.mlp.gate.requires_grad_(False)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._share(embedding, None, target_head)
        prefix = layer_names(config.source).prefix
        self._names = {prefix + _file_name(name): name for name in self.file_tensors()}
        self.file_dtypes = dict.fromkeys(self._names, torch.float32)

    def parameter_of(self, name: str) -> str:
        """Name of what a checkpoint of the target calls `name`, by `file_tensors`."""
        return self._names.get(name, name)

    def file_tensors(self) -> dict[str, Tensor]:
        """As every draft's: of each expert its three matrices, and the router's bias, which is no parameter."""
        tensors = super().file_tensors()
        experts = dict(_experts(tensors.pop(_GATE_UP), tensors.pop(_DOWN)))
        return {**tensors, **experts, _BIAS: self.get_buffer(_BIAS)}

    @abstractmethod
    def _query_key_value_of(self, normed_BNH: Tensor) -> Tensor:
        """Query, key and value of rows, [B, N, X], not yet turned."""

    def _first_hidden(self, features_BRD: Tensor) -> Tensor:
        return features_BRD

    def _way_in(self, tokens_BT: Tensor, _opens_text_B: Tensor | None) -> WayIn:
        # The projection is linear in [embedding, hidden]: the embedding's half is the same at every step.
        weight_HH = self.eh_proj.weight
        width = self.config.hidden_size
        embedded_BTH = self.enorm(functional.embedding(tokens_BT, self.embedding_WH))
        return WayIn(functional.linear(embedded_BTH, weight_HH[:, :width]), (weight_HH[:, width:],))

    def _enter(self, way_in: WayIn, tokens_BNY: Tensor, hidden_BNH: Tensor) -> tuple[Tensor, Tensor]:
        (hidden_weight_HH,) = way_in.weights
        residual_BNH = (tokens_BNY + functional.linear(self.hnorm(hidden_BNH), hidden_weight_HH)).float()
        return self._query_key_value_of(self.midlayer.input_layernorm(residual_BNH)), residual_BNH


def _experts(gate_ups_E: Tensor, downs_E: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Views of every expert's matrices, by names that begin as those of the layer's other tensors."""
    for expert, (gate_up, down) in enumerate(zip(gate_ups_E, downs_E, strict=True)):
        gate, up = gate_up.chunk(2)
        for part, matrix in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
            yield f"midlayer.mlp.experts.{expert}.{part}.weight", matrix


def _file_name(name: str) -> str:
    return _NORM.get(name, name.removeprefix("midlayer."))
