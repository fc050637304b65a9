"""Whether enough traces are pending for a learning round, and whether some were trimmed before they were read."""

import logging

from ..buffer.base import BufferCounts
from .config import LearnerConfig

_log = logging.getLogger(__name__)


class Backlog:
    """Reads the buffer's counts once per learning round."""

    def __init__(self, config: LearnerConfig) -> None:
        self._config = config
        self._trimmed: int | None = None  # when last read

    def why_too_few(self, counts: BufferCounts) -> str:
        """Why no learning round is due; empty when one is. Warns once of traces trimmed since the last call."""
        self._warn_of_trimmed(counts)
        if counts.pending >= self._config.min_new_traces or self._fills_half(counts):
            return ""
        return f"{counts.pending} traces pending, {self._config.min_new_traces} needed"

    def _fills_half(self, counts: BufferCounts) -> bool:
        """Whether pending traces fill half of the buffer, by the mean size of its entries: more might never fit."""
        pending_bytes = counts.bytes * counts.pending / counts.entries if counts.entries else 0.0
        return pending_bytes >= self._config.buffer.max_bytes / 2

    def _warn_of_trimmed(self, counts: BufferCounts) -> None:
        lost = counts.trimmed - (counts.trimmed if self._trimmed is None else self._trimmed)
        self._trimmed = counts.trimmed
        if lost > 0:
            _log.warning(
                "%d traces were trimmed before they were learned since the last learning round; raise "
                "PACELINE_BUFFER_MAX_BYTES (%d) or lower PACELINE_MIN_NEW_TRACES (%d)",
                lost,
                self._config.buffer.max_bytes,
                self._config.min_new_traces,
            )
