"""config.json of a draft: what every kind of draft has in it, and how its values are checked."""

import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ...buffer.errors import ConfigError
from .rope import Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Sizes and constants of a draft of one layer. Settings of the file are kept in `source` and written back."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int  # of the target
    draft_vocab_size: int
    rms_norm_eps: float = 1e-6
    rope: Rope = field(default_factory=Rope)
    norm_output: bool = False  # a step is fed the normed output of the step before it
    shares_head: bool = False  # the target's head is the draft's, and their vocabularies are one
    source: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, path: Path) -> Self:
        """Read a config.json. ConfigError when it is absent, not JSON, incomplete, or asks for arithmetic not here."""
        try:
            source = json.loads(path.read_text(encoding="utf-8"))
            check_tables(source)
            return cls._of(source)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: got {error}, expected the config.json of a draft") from error
        except KeyError as error:
            raise ConfigError(f"{path}: {error.args[0]} is missing; add it to the draft's config") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    @abstractmethod
    def _of(cls, source: Mapping[str, Any]) -> Self:
        """The config that a config.json's table describes; raises what `from_json` tells of."""

    @property
    @abstractmethod
    def feature_width(self) -> int:
        """Numbers in one feature row."""

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that rope turns, from the first on."""
        return self.head_dim

    def to_json(self, path: Path) -> None:
        """Write the config as SGLang reads it; settings the draft was loaded with are kept verbatim."""
        own = {name: getattr(self, name) for name in _SIZES} | self._named()
        written = {**own, **({} if self.source else {"rope_parameters": self.rope.settings()}), **self.source}
        path.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    @abstractmethod
    def _named(self) -> dict[str, Any]:
        """What config.json says beside sizes and rope of a draft that was loaded from none."""


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


def sizes_of(source: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a DraftConfig that every config.json names alike. KeyError or ConfigError as `size_of`."""
    heads = size_of(source, "num_attention_heads")
    hidden = size_of(source, "hidden_size")
    kv_heads = size_of(source, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConfigError(f"num_key_value_heads: got {kv_heads}, expected a divisor of num_attention_heads ({heads})")
    head_dim = size_of(source, "head_dim", hidden // heads)
    if head_dim < 2 or head_dim % 2:
        raise ConfigError(f"head_dim: got {head_dim}, expected an even number, since rope turns pairs of channels")
    return {
        "hidden_size": hidden,
        "intermediate_size": size_of(source, "intermediate_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": size_of(source, "vocab_size"),
        "rms_norm_eps": _epsilon(source.get("rms_norm_eps", 1e-6)),
    }


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


def check_activation(source: Mapping[str, Any]) -> None:
    """ConfigError unless the feed-forward half of a layer is SwiGLU."""
    if source.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act: got {source['hidden_act']!r}, expected 'silu'; this draft has no other form")


def _epsilon(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"rms_norm_eps: got {value!r}, expected a number above 0")
    return float(value)
