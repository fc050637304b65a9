"""config.json of an EAGLE-3 draft: what the draft is built from, and what SGLang offers but this draft is not."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...buffer.errors import ConfigError
from .rope import Rope, rope_from

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
    rope: Rope = field(default_factory=Rope)
    norm_before_fc: bool = False  # one norm over the whole feature row, before all else
    fc_norm: bool = False  # one norm for each target layer's part of the row
    norm_output: bool = False  # a step is fed the normed output of the step before it
    shares_head: bool = False  # the target's head is the draft's, and their vocabularies are one
    source: Mapping[str, Any] = field(default_factory=dict)

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
    def from_json(cls, path: Path) -> "Eagle3Config":
        """Read a config.json. ConfigError when it is absent, not JSON, incomplete, or asks for arithmetic not here."""
        try:
            source = json.loads(path.read_text(encoding="utf-8"))
            check_tables(source)
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
    heads = size_of(source, "num_attention_heads")
    hidden = size_of(source, "hidden_size")
    kv_heads = size_of(source, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"num_key_value_heads: got {kv_heads}, expected a divisor of num_attention_heads ({heads})")
    head_dim = size_of(source, "head_dim", hidden // heads)
    if head_dim < 2 or head_dim % 2:
        raise ConfigError(f"head_dim: got {head_dim}, expected an even number, since rope turns pairs of channels")
    words = source["draft_vocab_size"]  # null, not absent: SGLang 0.5.21 does not start without the name
    return Eagle3Config(
        hidden_size=hidden,
        intermediate_size=size_of(source, "intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=size_of(source, "vocab_size"),
        draft_vocab_size=size_of(source, "vocab_size" if words is None else "draft_vocab_size"),
        feature_layers=_feature_layers(source),
        rms_norm_eps=_epsilon(source.get("rms_norm_eps", 1e-6)),
        rope=rope_from(source),
        norm_before_fc=bool(_eagle(source).get("norm_before_fc", source.get("norm_before_fc", False))),
        fc_norm=bool(source.get("fc_norm") or source.get("use_aux_norm")),
        norm_output=bool(source.get("norm_output")),
        shares_head=words is None,
        source=source,
    )


def size_of(source: Mapping[str, Any], name: str, absent: int | None = None) -> int:
    """A size in a config.json; `absent`, if given, where it is absent or null.

    KeyError without either, ConfigError for anything but a whole number above 0.
    """
    value = source[name] if absent is None else source.get(name)
    if value is None and absent is not None:
        return absent
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name}: got {value!r}, expected a whole number above 0")
    return value


def check_tables(source: Any) -> None:
    """ConfigError unless a config.json is a table, and so is what has to be one in it."""
    if not isinstance(source, dict):
        raise ConfigError(f"got a {type(source).__name__}, expected a JSON object")
    for name in ("text_config", "eagle_config", "rope_scaling", "rope_parameters"):
        if not isinstance(source.get(name) or {}, dict):
            raise ConfigError(f"{name}: got {source[name]!r}, expected a JSON object or null")


def check_sizes(path: Path, target: Mapping[str, Any]) -> None:
    """ConfigError, naming the target's config, where no draft can have its sizes."""
    try:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"):
            size_of(target, name)
    except KeyError as error:
        raise ConfigError(f"{path}: got no {error.args[0]}, expected it in the config of a target") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _epsilon(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"rms_norm_eps: got {value!r}, expected a number above 0")
    return float(value)


_AUX_IDS = "eagle_aux_hidden_state_layer_ids"


#: Fields that config.json names as here.
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
)
#: Written only where they are true: readers differ in what the absence of `norm_output` means.
_SWITCHES = ("norm_before_fc", "fc_norm", "norm_output")


def _derived(config: Eagle3Config) -> dict[str, Any]:
    return {
        **{name: getattr(config, name) for name in _SIZES},
        **{name: True for name in _SWITCHES if getattr(config, name)},
        **({} if config.source else {"rope_parameters": config.rope.settings()}),
        "architectures": [ARCHITECTURE],
        "draft_vocab_size": None if config.shares_head else config.draft_vocab_size,
        "model_type": "llama",
        "hidden_act": "silu",
        "num_aux_hidden_states": config.feature_layers,
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
    }


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
