"""config.json of an EAGLE-3 draft: what the draft is built from, and what SGLang offers but this draft is not."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...buffer.errors import ConfigError

ARCHITECTURE = "LlamaForCausalLMEagle3"

#: Settings of SGLang's class that change the arithmetic, and the one value this draft computes; absent means the same.
_ONLY = MappingProxyType(
    {
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "bias": False,
        "tie_word_embeddings": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "use_aux_norm": False,
        "norm_output": False,
        "partial_rotary_factor": 1,
        "rope_is_neox_style": True,
    }
)


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """Sizes and constants of one draft. Unknown settings of the file are kept in `source` and written back."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int  # of the target
    draft_vocab_size: int
    feature_layers: int = 3  # target layers side by side in one feature row
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def feature_width(self) -> int:
        """Numbers in one feature row: the target's captured layers side by side."""
        return self.feature_layers * self.hidden_size

    @classmethod
    def from_json(cls, path: Path) -> "Eagle3Config":
        """Read a config.json. ConfigError when it is absent, not JSON, incomplete, or asks for arithmetic not here."""
        try:
            source = json.loads(path.read_text(encoding="utf-8"))
            _check_supported(source)
            return _from_source(source)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: got {error}, expected the config.json of an EAGLE-3 draft") from error
        except KeyError as error:
            raise ConfigError(f"{path}: {error.args[0]} is missing; add it to the draft's config") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def to_json(self, path: Path) -> None:
        """Write the config as SGLang reads it; settings the draft was loaded with are kept verbatim."""
        path.write_text(
            json.dumps({**_derived(self), **self.source}, indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )


def _from_source(source: Mapping[str, Any]) -> Eagle3Config:
    heads = source["num_attention_heads"]
    return Eagle3Config(
        hidden_size=source["hidden_size"],
        intermediate_size=source["intermediate_size"],
        num_attention_heads=heads,
        num_key_value_heads=source.get("num_key_value_heads") or heads,
        head_dim=source.get("head_dim") or source["hidden_size"] // heads,
        vocab_size=source["vocab_size"],
        draft_vocab_size=source["draft_vocab_size"],
        feature_layers=source.get("num_aux_hidden_states") or len(_eagle(source).get(_AUX_IDS) or (0, 0, 0)),
        rms_norm_eps=source.get("rms_norm_eps", 1e-6),
        rope_theta=float(_rope(source).get("rope_theta", 10000.0)),
        source=source,
    )


_AUX_IDS = "eagle_aux_hidden_state_layer_ids"


def _derived(config: Eagle3Config) -> dict[str, Any]:
    names = [name for name in Eagle3Config.__slots__ if name not in {"source", "feature_layers"}]
    return {
        **{name: getattr(config, name) for name in names},
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_aux_hidden_states": config.feature_layers,
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
    }


def _eagle(source: Mapping[str, Any]) -> Mapping[str, Any]:
    return source.get("eagle_config") or {}


def _rope(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rope settings where SGLang looks for them: the nested form wins over the flat one."""
    return source.get("rope_parameters") or {
        **(source.get("rope_scaling") or {}),
        "rope_theta": source.get("rope_theta", 10000.0),
    }


def _check_supported(source: Mapping[str, Any]) -> None:
    asked = {**source, **{name: value for name, value in _eagle(source).items() if name == "norm_before_fc"}}
    for name, only in _ONLY.items():
        if asked.get(name) not in (None, only):
            raise ConfigError(f"{name}: got {asked[name]!r}, expected {only!r}; this draft has no other form")
    if source.get("architectures", [ARCHITECTURE]) != [ARCHITECTURE]:
        raise ConfigError(f"architectures: got {source['architectures']}, expected [{ARCHITECTURE!r}]")
    kind = _rope(source).get("rope_type", _rope(source).get("type", "default"))
    if kind != "default":
        raise ConfigError(f"rope type: got {kind!r}, expected 'default'")
    if source.get("target_hidden_size", source["hidden_size"]) != source["hidden_size"]:
        raise ConfigError(
            f"target_hidden_size: got {source['target_hidden_size']}, expected hidden_size ({source['hidden_size']}), "
            "since the draft shares the target's embedding"
        )
    if source["draft_vocab_size"] is None:
        raise ConfigError(
            "draft_vocab_size: got null, with which SGLang serves the target's head; set it to vocab_size"
        )
