"""A learner's heartbeat: its last known status, sent after every learning round and while a long one runs."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial

from ..buffer.base import VersionBoard
from ..buffer.errors import BufferUnavailable
from ..buffer.lease import renewed
from .config import LearnerConfig

#: Round intervals until a silent learner's heartbeat ends: one slow learning round must not look like a death.
_INTERVALS_ALIVE = 4


class Heartbeat:
    """Sends one learner's status. New figures replace those of the same name; the others stay through idle rounds."""

    def __init__(self, config: LearnerConfig, board: VersionBoard) -> None:
        self._member = f"learner:{config.name}"
        self._between_rounds_s = config.round_interval_s * _INTERVALS_ALIVE
        self._in_round_s = config.round_lease_s
        self._board = board
        self._status: dict[str, object] = {}

    def beat(self, figures: Mapping[str, object]) -> None:
        """Send the figures of a learning round that has ended. Raises BufferUnavailable."""
        self._status |= figures
        self._board.beat(self._member, self._status, self._between_rounds_s)

    def at_work(self, kind: str) -> AbstractContextManager[object]:
        """Send that a learning round is at `kind`, again and again while the body runs.

        Such a heartbeat ends `round_lease_s` after the learner died. Raises BufferUnavailable at the first one.
        """
        self._status |= {"kind": kind}
        self._board.beat(self._member, self._status, self._in_round_s)
        return renewed(partial(self._beat_again, dict(self._status)), self._in_round_s)

    def _beat_again(self, status: Mapping[str, object]) -> None:
        # Redis may be away for a moment: the learning round itself notices when it needs it.
        with suppress(BufferUnavailable):
            self._board.beat(self._member, status, self._in_round_s)
