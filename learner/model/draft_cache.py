"""Drafts of published versions, loaded on demand and kept while they are used."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ...buffer.board.version import BoardState
from ...buffer.board.weights_file import check_weights
from ...buffer.errors import ConfigError, WeightsRefused
from .draft import Draft
from .draft_io import load_draft

_log = logging.getLogger(__name__)


#: Returns the folder of a version's weights, as published. Raises as check_weights does.
FindWeights = Callable[[BoardState, int], Path]


def folder_on_disk(state: BoardState, number: int) -> Path:
    """Where there is no store."""
    return check_weights(state, number).parent


class DraftCache:
    """At most `capacity` loaded drafts, the least recently used one leaving first."""

    def __init__(
        self,
        embedding: Tensor,
        device: torch.device,
        capacity: int = 3,
        *,
        head: Callable[[], Tensor] | None = None,
        find: FindWeights = folder_on_disk,
    ) -> None:
        """`embedding` is the target's, shared by every draft, as is what `head` returns; they compute on `device`."""
        self.find = find
        self._device = device
        self._head = head
        self._embedding = embedding
        self._capacity = capacity
        self._drafts: OrderedDict[str, Draft] = OrderedDict()

    def draft(self, state: BoardState, number: int) -> Draft | None:
        """Draft of version `number`, which must be on the board, for replay.

        Blocks on the disk when it is not loaded yet. None, with a warning, when its weights cannot be read, are not
        those that were published, or are no draft of this target.
        """
        sha256 = state.rows[number].version.sha256
        if sha256 not in self._drafts:
            try:
                folder = self.find(state, number)
                self._drafts[sha256] = load_draft(folder, self._embedding, self._head).to(self._device)
            except (ConfigError, WeightsRefused) as refusal:
                _log.warning("version %d is not compared: %s", number, refusal)
                return None
        self._drafts.move_to_end(sha256)
        if len(self._drafts) > self._capacity:
            self._drafts.popitem(last=False)
        return self._drafts[sha256]


def first_draft(
    state: BoardState,
    initial: Callable[[], Path],
    embedding: Tensor,
    head: Callable[[], Tensor] | None = None,
    *,
    find: FindWeights = folder_on_disk,
) -> Draft:
    """The draft that training starts from without a checkpoint: the live version, else the one `initial` names.

    Blocks on the disk. ConfigError when the live version is refused and `initial` finds no draft of this target either.
    """
    if state.live is not None:
        try:
            return load_draft(find(state, state.live), embedding, head)
        except (ConfigError, WeightsRefused) as refusal:
            _log.warning("training starts from the draft the server was started with: %s", refusal)
    return load_draft(initial(), embedding, head)
