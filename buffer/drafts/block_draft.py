"""The draft of SGLang's DFLASH, which drafts a whole block in one forward: what servers and learners both ask of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from .checkpoint import CONFIG_FILE, architecture_of

#: SGLang's class of such a draft, as its config.json names it.
ARCHITECTURE: Final = "DFlashDraftModel"
#: An embedding of the mask that was trained beside the draft: SGLang writes it into the target's table.
MASK_EMBEDDING: Final = "mask_embedding.pt"


def is_block_draft(config: Path) -> bool:
    """Whether this config.json is that of such a draft; False where it cannot be read."""
    return architecture_of(config) == ARCHITECTURE


def settings_of(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says of its block, in the table for it or outside. ConfigError where that is no table."""
    table = source.get("dflash_config") or {}
    if not isinstance(table, Mapping):
        raise ConfigError(f"dflash_config: got {table!r}, expected a JSON object or null")
    outside = ("block_size", "mask_token_id", "target_layer_ids", "num_target_layers")
    return {name: source[name] for name in outside if source.get(name) is not None} | dict(table)


def check_folder(folder: Path) -> None:
    """ConfigError where what a server drafts with is not all in the draft's config and weights."""
    if not is_block_draft(folder / CONFIG_FILE):
        found = architecture_of(folder / CONFIG_FILE) or "no architecture"
        raise ConfigError(
            f"{folder}: got DFLASH with a draft of {found}, expected {ARCHITECTURE}; its later kinds are not built"
        )
    if (folder / MASK_EMBEDDING).exists():
        raise ConfigError(
            f"{folder}: got {MASK_EMBEDDING}, expected none: SGLang writes it into the target's embedding, which a "
            "learner reads from the target's own checkpoint"
        )
