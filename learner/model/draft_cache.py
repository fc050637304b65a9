"""Drafts of published versions, loaded when asked for and kept while they are used."""

import logging
from collections import OrderedDict
from pathlib import Path

import torch
from torch import Tensor

from ...buffer.errors import ConfigError, WeightsRefused
from ...buffer.version import BoardState, DraftVersion
from ...buffer.weights_file import WEIGHTS_FILE, check_weights, sha256_of
from ..disk import folder_of
from .draft_io import load_draft
from .eagle3 import Eagle3Draft

_log = logging.getLogger(__name__)


class DraftCache:
    """At most `capacity` loaded drafts, the least recently used one leaving first."""

    def __init__(self, embedding: Tensor, device: torch.device, capacity: int = 3) -> None:
        """`embedding` is the target's, shared by every draft; drafts compute on `device`."""
        self._device = device
        self._embedding = embedding
        self._capacity = capacity
        self._drafts: OrderedDict[str, Eagle3Draft] = OrderedDict()

    def draft(self, version: DraftVersion) -> Eagle3Draft | None:
        """The version's draft for replay; None, with a warning, when its weights are gone, not its own, or no draft."""
        if version.sha256 not in self._drafts:
            loaded = self._load(version)
            if loaded is None:
                return None
            self._drafts[version.sha256] = loaded
        self._drafts.move_to_end(version.sha256)
        if len(self._drafts) > self._capacity:
            self._drafts.popitem(last=False)
        return self._drafts[version.sha256]

    def _load(self, version: DraftVersion) -> Eagle3Draft | None:
        folder = folder_of(version)
        if folder is None:
            _log.warning("weights of version %d: got %s, expected a file:// URI", version.number, version.weights_uri)
            return None
        try:
            digest = sha256_of(folder / WEIGHTS_FILE)
        except OSError as error:
            _log.warning("weights of version %d cannot be read: %s", version.number, error)
            return None
        if digest != version.sha256:
            _log.warning("%s: got weights %s, expected %s as on the board", folder, digest[:12], version.sha256[:12])
            return None
        try:
            return load_draft(folder, self._embedding).to(self._device)
        except ConfigError as error:  # somebody put a draft of another target, or none, on the board
            _log.warning("version %d is no draft of this target: %s", version.number, error)
            return None


def first_draft(state: BoardState, initial: Path, embedding: Tensor) -> Eagle3Draft:
    """What training starts from without a checkpoint: the live version, or the draft in `initial` when it is refused.

    Blocks on the disk. ConfigError when there is no draft in `initial` either.
    """
    if state.live is not None:
        try:
            return load_draft(check_weights(state, state.live).parent, embedding)
        except (ConfigError, WeightsRefused) as refusal:
            _log.warning("training starts from %s: %s", initial, refusal)
    return load_draft(initial, embedding)
