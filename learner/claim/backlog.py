"""Whether a learning round is due, by its traces or because it was asked for, and whether unread ones were trimmed."""

import logging
from dataclasses import dataclass

from ...buffer.stream.trace_buffer import BufferCounts, TraceBuffer
from ..config import LearnerConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Due:
    """The answer whether a learning round is due, and the figures that say so."""

    is_due: bool
    why: str


class Backlog:
    """Reads the buffer's counts once per learning round."""

    def __init__(self, config: LearnerConfig) -> None:
        self._config = config
        self._trimmed: int | None = None  # when last read
        self._is_unfinished = False  # a learning round was due, and has not ended well

    def due(self, buffer: TraceBuffer, *, has_suspects: bool) -> Due:
        """A learning round is due with enough traces, with a buffer half full of them, when asked for, or after a wait.

        One trace is enough for the last two: on a quiet server there may be no second one. An ask is taken once there
        is a trace, and starts one learning round, and those that its traces need where it fails: then one is due until
        `finish` is called, or while there are suspects (ClaimLimiter). Warns once of traces trimmed since last time.
        """
        found = self._due(buffer, has_suspects=has_suspects)
        self._is_unfinished = found.is_due
        return found

    def finish(self) -> None:
        """The learning round that was due has ended well. Not for one that was not due, or paused."""
        self._is_unfinished = False

    def _due(self, buffer: TraceBuffer, *, has_suspects: bool) -> Due:
        counts = buffer.counts()
        self._warn_of_trimmed(counts)
        is_asked = counts.pending > 0 and buffer.take_ask()
        have = f"{counts.pending} traces pending, {self._config.min_new_traces} needed"
        if counts.pending >= self._config.min_new_traces:
            return Due(True, have)
        if self._fills_half(counts):
            return Due(True, f"{have}; they fill half of the buffer")
        if is_asked:
            return Due(True, f"{have}; a trainer asked for a learning round")
        if counts.pending and (self._is_unfinished or has_suspects):
            return Due(True, f"{have}; a learning round failed, and its traces are tried again")
        limit_s = self._config.max_wait_s
        waited_s = buffer.oldest_wait_s() if counts.pending else None
        if limit_s and waited_s is not None and waited_s >= limit_s:
            return Due(True, f"{have}; the oldest has waited {waited_s:.0f} s, at most {limit_s:g} s")
        return Due(False, have)

    def _fills_half(self, counts: BufferCounts) -> bool:
        """Return whether pending traces fill half of the buffer, by the mean size of its entries."""
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
