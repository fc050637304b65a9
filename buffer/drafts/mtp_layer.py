"""The draft in a target's own checkpoint: its one layer for multi-token prediction (MTP)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from .checkpoint import architecture_of

#: SGLang's classes of the targets whose MTP layer is a draft here, as their config.json names them.
MIMO: Final = "MiMoForCausalLM"
GLM4_MOE: Final = "Glm4MoeForCausalLM"
DEEPSEEK: Final = "DeepseekV3ForCausalLM"
#: What the names of all MTP layers of a target begin with, and the setting that has the number of the first.
_PLACES: Final = {
    MIMO: ("model.mtp_layers.", None),
    GLM4_MOE: ("model.layers.", "num_hidden_layers"),
    DEEPSEEK: ("model.layers.", "num_hidden_layers"),
}
ARCHITECTURES: Final = tuple(_PLACES)
#: A layer may repeat embedding and head; SGLang gives it the target's own.
_REPEATED: Final = ("embed_tokens.", "shared_head.head.")


@dataclass(frozen=True, slots=True)
class LayerNames:
    """How a target's checkpoint names the tensors of its MTP layer."""

    stem: str
    number: int

    @property
    def prefix(self) -> str:
        """What the name of every tensor of the layer begins with."""
        return f"{self.stem}{self.number}."

    def layer_of(self, name: str) -> int | None:
        """Number of the MTP layer that this tensor belongs to; None of any other tensor."""
        number, dot, part = name.removeprefix(self.stem).partition(".")
        if not name.startswith(self.stem) or not dot or not number.isdecimal() or part.startswith(_REPEATED):
            return None
        return int(number) if int(number) >= self.number else None


def is_mtp(config: Path) -> bool:
    """Whether this config.json is that of such a target, or of its MTP layer alone; False where it cannot be read."""
    return architecture_of(config) in ARCHITECTURES


def layer_names(source: Mapping[str, Any]) -> LayerNames:
    """Of the target, or its layer alone, with this config, whose architecture is one of ARCHITECTURES.

    ConfigError where the config does not say which layer it is.
    """
    stem, setting = _PLACES[source["architectures"][0]]
    number = 0 if setting is None else source.get(setting)
    # SGLang takes 1 for the layer alone under the number 0.
    if type(number) is not int or (setting is not None and number < 2):
        raise ConfigError(f"{setting}: got {number!r}, expected the number of the target's layers, at least 2")
    return LayerNames(stem, number)


def config_of_layer(config: Path) -> str:
    """config.json of the layer alone: as the target's, but without code of its own, which would have to lie beside it.

    MiMo's own class, which transformers has not, differs from Qwen2's by its name.
    """
    source: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    source.pop("auto_map", None)
    named = {"model_type": "qwen2"} if source["architectures"][0] == MIMO else {}
    return json.dumps({**source, **named}, indent=2, sort_keys=True) + "\n"
