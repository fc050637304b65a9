"""config.json of an EAGLE-3 draft: what the draft is built from, and what SGLang offers but this draft is not."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from ...buffer.errors import ConfigError
from .draft_config import DraftConfig, size_of, sizes_of
from .rope import rope_from

ARCHITECTURE = "LlamaForCausalLMEagle3"

#: Settings of SGLang's class that change the arithmetic, and the one value this draft computes; absent means the same.
_ONLY = MappingProxyType(
    {
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "bias": False,
        "tie_word_embeddings": False,
        "partial_rotary_factor": 1,
        "rope_is_neox_style": True,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(DraftConfig):
    """Sizes and constants of one EAGLE-3 draft."""

    feature_layers: int = 3  # target layers side by side in one feature row
    norm_before_fc: bool = False  # one norm over the whole feature row, before all else
    fc_norm: bool = False  # one norm for each target layer's part of the row

    @property
    def feature_width(self) -> int:
        """Numbers in one feature row: the target's captured layers side by side."""
        return self.feature_layers * self.hidden_size

    @property
    def layer_ids(self) -> tuple[int, ...] | None:
        """Target layers whose outputs are a feature row; None: SGLang's own choice."""
        named = _eagle(self.source).get(_AUX_IDS)
        return tuple(named) if named else None

    @classmethod
    def _of(cls, source: Mapping[str, Any]) -> Self:
        _check_supported(source)
        words = source["draft_vocab_size"]  # null, not absent: SGLang 0.5.21 does not start without the name
        return cls(
            **sizes_of(source),
            draft_vocab_size=size_of(source, "vocab_size" if words is None else "draft_vocab_size"),
            feature_layers=_feature_layers(source),
            rope=rope_from(source),
            norm_before_fc=bool(_eagle(source).get("norm_before_fc", source.get("norm_before_fc", False))),
            fc_norm=bool(source.get("fc_norm") or source.get("use_aux_norm")),
            norm_output=bool(source.get("norm_output")),
            shares_head=words is None,
            source=source,
        )

    def _named(self) -> dict[str, Any]:
        return {
            **{name: True for name in _SWITCHES if getattr(self, name)},
            "architectures": [ARCHITECTURE],
            "draft_vocab_size": None if self.shares_head else self.draft_vocab_size,
            "model_type": "llama",
            "hidden_act": "silu",
            "num_aux_hidden_states": self.feature_layers,
            "num_hidden_layers": 1,
            "tie_word_embeddings": False,
        }


_AUX_IDS = "eagle_aux_hidden_state_layer_ids"
#: Written only where they are true: readers differ in what the absence of `norm_output` means.
_SWITCHES = ("norm_before_fc", "fc_norm", "norm_output")


def _feature_layers(source: Mapping[str, Any]) -> int:
    ids = _eagle(source).get(_AUX_IDS) or [0, 1, 2]
    named = ids if isinstance(ids, list) else []
    if not all(type(each) is int and each >= 0 for each in named) or not 0 < len(named) == len(set(named)):
        raise ConfigError(f"{_AUX_IDS}: got {ids!r}, expected a list of different layers")
    return size_of(source, "num_aux_hidden_states", len(named))


def _eagle(source: Mapping[str, Any]) -> Mapping[str, Any]:
    return source.get("eagle_config") or {}


def _check_supported(source: Mapping[str, Any]) -> None:
    for name, only in _ONLY.items():
        if source.get(name) not in (None, only):
            raise ConfigError(f"{name}: got {source[name]!r}, expected {only!r}; this draft has no other form")
    if source.get("architectures", [ARCHITECTURE]) != [ARCHITECTURE]:
        raise ConfigError(f"architectures: got {source['architectures']}, expected [{ARCHITECTURE!r}]")
    if source.get("target_hidden_size", source["hidden_size"]) != source["hidden_size"]:
        raise ConfigError(
            f"target_hidden_size: got {source['target_hidden_size']}, expected hidden_size ({source['hidden_size']}), "
            "since the draft shares the target's embedding"
        )

    # SGLang 0.5.21 tells features from hidden states by their width: as wide as an embedding, they would pass by `fc`.
    if _feature_layers(source) < 2:
        raise ConfigError(f"target layers: got {_feature_layers(source)}, expected at least 2: SGLang skips fc for one")
