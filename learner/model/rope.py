"""Rotary position embedding as SGLang computes it for a draft: how fast each channel pair turns, and how large it gets.

Axis C: channel pairs of one head. Every kind here turns at a constant speed, so only distances matter.
Where transformers and SGLang read a setting differently, SGLang counts, since it serves the draft: YaRN's
`attention_factor` means nothing to it, and `attn_factor` does.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ...buffer.errors import ConfigError

#: Kinds that a draft may have; others depend on the length of the text, or turn by more than one position.
KINDS = ("default", "llama3", "yarn")
_ABOVE_0 = ("rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow")


@dataclass(frozen=True, slots=True)
class Rope:
    """Unscaled: pair i turns by theta^(-i / C) per position."""

    rope_theta: float = 10000.0

    @property
    def kind(self) -> str:
        """Name of this kind in config.json."""
        return "default"

    @property
    def magnitude(self) -> float:
        """Return what the rotated channels of queries and keys are multiplied by."""
        return 1.0

    def radians(self, pairs: int) -> Tensor:
        """Turn of every channel pair per position, float32[C]."""
        return 1.0 / self.rope_theta ** (torch.arange(pairs, dtype=torch.float32) / pairs)

    def settings(self) -> dict[str, Any]:
        """Return what `rope_from` reads as this."""
        return {"rope_type": self.kind, **{name: value for name, value in asdict(self).items() if value is not None}}


@dataclass(frozen=True, slots=True)
class Llama3Rope(Rope):
    """Pairs that turn less than `low_freq_factor` times in the original length turn slower; the change is gradual."""

    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: float = 2048

    @property
    def kind(self) -> str:
        """Name of this kind in config.json."""
        return "llama3"

    def radians(self, pairs: int) -> Tensor:
        """Turn of every channel pair per position, float32[C]."""
        plain_C = Rope.radians(self, pairs)
        turns_C = self.original_max_position_embeddings * plain_C / (2 * math.pi)
        # Of the unscaled speed: 1 from high_freq_factor turns on, 0 up to low_freq_factor turns.
        span = max(self.high_freq_factor - self.low_freq_factor, torch.finfo(torch.float32).tiny)
        share_C = ((turns_C - self.low_freq_factor) / span).clamp(0.0, 1.0)
        return (1 - share_C) * plain_C / self.factor + share_C * plain_C


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnRope(Rope):
    """Slow pairs turn slower by `factor`, fast ones as before, in between a ramp over the channels; and all grow."""

    factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_max_position_embeddings: float = 2048
    extrapolation_factor: float = 1.0
    attn_factor: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def kind(self) -> str:
        """Name of this kind in config.json."""
        return "yarn"

    @property
    def magnitude(self) -> float:
        """Return what the rotated channels of queries and keys are multiplied by."""
        if self.mscale is None or self.mscale_all_dim is None:
            return self._growth(1.0) * self.attn_factor
        return self._growth(self.mscale) / self._growth(self.mscale_all_dim) * self.attn_factor

    def radians(self, pairs: int) -> Tensor:
        """Turn of every channel pair per position, float32[C]."""
        plain_C = Rope.radians(self, pairs)
        low = self._pair_of(self.beta_fast, pairs)
        high = self._pair_of(self.beta_slow, pairs)
        if self.truncate:
            low = math.floor(low)
            high = math.ceil(high)
        low = max(low, 0)
        high = min(high, 2 * pairs - 1)
        ramp_C = ((torch.arange(pairs) - low) / (high - low or 0.001)).clamp(0.0, 1.0)
        share_C = (1 - ramp_C) * self.extrapolation_factor
        return (1 - share_C) * plain_C / self.factor + share_C * plain_C

    def _growth(self, scale: float) -> float:
        return 0.1 * scale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def _pair_of(self, turns: float, pairs: int) -> float:
        """The channel pair, as a real number, that turns so often in the original length."""
        return (
            pairs * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi)) / math.log(self.rope_theta)
        )


def rope_from(source: Mapping[str, Any]) -> Rope:
    """The rope of a config.json, where transformers looks for it. ConfigError for a kind that is not in KINDS."""
    given = {name: value for name, value in _merged(source).items() if value is not None}
    kind = given.get("rope_type", given.get("type", "default"))
    if "mrope_section" in given or kind == "mrope":
        raise ConfigError("rope type: got 'mrope', which turns by the place in a picture, expected " + _kinds())
    if kind not in KINDS or given.get("use_fope"):
        raise ConfigError(f"rope type: got {'fope' if given.get('use_fope') else kind!r}, expected {_kinds()}")
    made: type[Rope] = {"default": Rope, "llama3": Llama3Rope, "yarn": YarnRope}[kind]
    if made is not Rope and "factor" not in given:
        raise KeyError(f"factor of the rope type {kind!r}")
    names = made.__dataclass_fields__
    return made(**{name: _number(name, value) for name, value in given.items() if name in names})


def _merged(source: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of rope in one place; a length outside wins over the one inside, as in SGLang."""
    inside = source.get("rope_scaling") or source.get("rope_parameters") or {}
    defaults = {
        "rope_theta": source.get("rope_theta"),
        "original_max_position_embeddings": source.get("max_position_embeddings"),
    }
    outside = source.get("original_max_position_embeddings")
    return {**defaults, **inside, **({} if outside is None else {"original_max_position_embeddings": outside})}


def _number(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        if name == "truncate" and isinstance(value, bool):
            return value
        raise ConfigError(f"{name}: got {value!r}, expected a number")
    if not math.isfinite(value) or (name in _ABOVE_0 and value <= 0):
        raise ConfigError(f"{name}: got {value!r}, expected a number{' above 0' * (name in _ABOVE_0)}")
    return float(value)


def _kinds() -> str:
    return f"one of {', '.join(KINDS)}"
