"""Whether enough traces wait for a round, and whether some left before anybody read them."""

import logging

from ..buffer.base import BufferCounts
from .config import LearnerConfig

_log = logging.getLogger(__name__)


class Backlog:
    """What one learner makes of the buffer's counts, look by look."""

    def __init__(self, config: LearnerConfig) -> None:
        self._config = config
        self._trimmed: int | None = None  # at the last look

    def why_too_few(self, counts: BufferCounts) -> str:
        """Why no round is due; empty when one is. Warns, once each, of traces that were trimmed since the last look."""
        self._warn_of_trimmed(counts)
        if counts.pending >= self._config.min_new_traces or self._fills_half(counts):
            return ""
        return f"{counts.pending} traces wait, {self._config.min_new_traces} make a round"

    def _fills_half(self, counts: BufferCounts) -> bool:
        """Whether what waits fills half of the buffer, by the mean size of its entries: more might never fit."""
        waiting_bytes = counts.bytes * counts.pending / counts.entries if counts.entries else 0.0
        return waiting_bytes >= self._config.buffer.max_bytes / 2

    def _warn_of_trimmed(self, counts: BufferCounts) -> None:
        lost = counts.trimmed - (counts.trimmed if self._trimmed is None else self._trimmed)
        self._trimmed = counts.trimmed
        if lost > 0:
            _log.warning(
                "%d traces left the buffer unlearnt since the last round; raise PACELINE_BUFFER_MAX_BYTES (%d) "
                "or lower PACELINE_MIN_NEW_TRACES (%d)",
                lost,
                self._config.buffer.max_bytes,
                self._config.min_new_traces,
            )
