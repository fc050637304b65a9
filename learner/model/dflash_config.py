"""config.json of a DFLASH draft: what the draft is built from, and what SGLang offers but this draft is not."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from ...buffer.drafts.block_draft import ARCHITECTURE, settings_of
from ...buffer.errors import ConfigError
from .draft_config import DraftConfig, size_of, sizes_of
from .rope import rope_from

#: Settings of SGLang's class that change the arithmetic, and the one value this draft computes; absent means the same.
_ONLY = MappingProxyType(
    {
        "hidden_act": "silu",
        "attention_bias": False,
        "is_causal": False,
        "use_gemma_norm": False,
        "partial_rotary_factor": 1,
        "rope_is_neox_style": True,
        "has_embed_tokens": False,
    }
)
#: Of the block's own settings those that this draft has; SGLang builds convolutions, selectors and more from others.
_KNOWN = frozenset({"block_size", "mask_token", "mask_token_id", "target_layer_ids", "num_target_layers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DflashConfig(DraftConfig):
    """Sizes and constants of one DFLASH draft."""

    layers: int
    block_size: int  # tokens verified in a round: the root, and a draft for each of the others
    mask_token_id: int  # whose embedding stands for a token to be drafted
    layer_ids: tuple[int, ...]  # target layers whose outputs are a feature row

    @property
    def feature_width(self) -> int:
        """Numbers in one feature row: the target's captured layers side by side."""
        return len(self.layer_ids) * self.hidden_size

    @classmethod
    def _of(cls, source: Mapping[str, Any]) -> Self:
        _check_supported(source)
        sizes = sizes_of(source)
        given = settings_of(source)
        words = sizes["vocab_size"]
        fixed: dict[str, Any] = {"draft_vocab_size": words, "shares_head": True}
        return cls(
            **sizes,
            **fixed,
            rope=rope_from(source),
            layers=size_of(source, "num_hidden_layers"),
            block_size=_block_size(given),
            mask_token_id=_mask_of(given, words),
            layer_ids=_layers_of(given),
            source=source,
        )

    def _named(self) -> dict[str, Any]:
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "num_hidden_layers": self.layers,
            "block_size": self.block_size,
            "dflash_config": {"mask_token_id": self.mask_token_id, "target_layer_ids": list(self.layer_ids)},
        }


def _block_size(given: Mapping[str, Any]) -> int:
    size = size_of(given, "block_size")
    if size < 2:
        raise ConfigError(f"block_size: got {size}, expected at least 2: the root alone drafts nothing")
    return size


def _mask_of(given: Mapping[str, Any], words: int) -> int:
    token = given.get("mask_token_id")
    if type(token) is not int or not 0 <= token < words:
        raise ConfigError(
            f"mask_token_id: got {token!r}, expected a token of the target, 0 to {words - 1}; name it in dflash_config "
            "where SGLang would look its text up"
        )
    return token


def _layers_of(given: Mapping[str, Any]) -> tuple[int, ...]:
    ids = given.get("target_layer_ids")
    named = ids if isinstance(ids, list) else []
    if not all(type(each) is int and each >= 0 for each in named) or not 0 < len(named) == len(set(named)):
        raise ConfigError(f"target_layer_ids: got {ids!r}, expected a list of different layers")
    return tuple(named)


def _check_supported(source: Mapping[str, Any]) -> None:
    for name, only in _ONLY.items():
        if source.get(name) not in (None, only):
            raise ConfigError(f"{name}: got {source[name]!r}, expected {only!r}; this draft has no other form")
    if source.get("architectures") != [ARCHITECTURE]:
        raise ConfigError(f"architectures: got {source.get('architectures')}, expected [{ARCHITECTURE!r}]")
    kinds = source.get("layer_types") or []
    if set(kinds) - {"full_attention"}:
        raise ConfigError(f"layer_types: got {sorted(set(kinds))}, expected full_attention alone; others are not built")
    others = {name: value for name, value in settings_of(source).items() if name not in _KNOWN and value}
    if others:
        raise ConfigError(f"dflash_config: got {others}, expected no more than {sorted(_KNOWN)}; others are not built")
