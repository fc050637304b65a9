"""The draft in a target's own checkpoint: of a MiMo, its one layer for multi-token prediction (MTP)."""

import json
from pathlib import Path
from typing import Any, Final

from .checkpoint import architecture_of

#: SGLang's class of the targets whose MTP layer is a draft here, as their config.json names it.
ARCHITECTURE: Final = "MiMoForCausalLM"
#: What the names of the layer's tensors begin with.
PREFIX: Final = "model.mtp_layers.0."
#: The same of any number of layers.
ANY_LAYER: Final = "model.mtp_layers."


def is_mtp(config: Path) -> bool:
    """Whether this config.json is that of such a target, or of its MTP layer alone; False where it cannot be read."""
    return architecture_of(config) == ARCHITECTURE


def config_of_layer(config: Path) -> str:
    """config.json of the layer alone: as the target's, but without code of its own, which would have to lie beside it.

    MiMo's own class differs from Qwen2's by its name.
    """
    source: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    source.pop("auto_map", None)
    return json.dumps({**source, "model_type": "qwen2"}, indent=2, sort_keys=True) + "\n"
