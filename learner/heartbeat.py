"""A learner's heartbeat: the last known figures, beaten anew after every round and while a long one runs."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial

from ..buffer.base import VersionBoard
from ..buffer.errors import BufferUnavailable
from ..buffer.lease import renewed
from .config import LearnerConfig

#: Rounds a heartbeat outlives its round by, so that one slow round does not look like a death.
_BEATS_MISSED = 4


class Heartbeat:
    """Beats for one learner. Figures are laid over the last known ones: an idle round does not hide those before."""

    def __init__(self, config: LearnerConfig, board: VersionBoard) -> None:
        self._member = f"learner:{config.name}"
        self._between_rounds_s = config.round_interval_s * _BEATS_MISSED
        self._in_round_s = config.round_lease_s
        self._board = board
        self._reading: dict[str, object] = {}

    def beat(self, figures: Mapping[str, object]) -> None:
        """Publish the figures of a round that has ended. Raises BufferUnavailable."""
        self._reading |= figures
        self._board.beat(self._member, self._reading, self._between_rounds_s)

    def at_work(self, kind: str) -> AbstractContextManager[object]:
        """Publish that a round of `kind` runs, and go on saying so while the body runs; it ends soon behind a death."""
        self._reading |= {"kind": kind}
        self._board.beat(self._member, self._reading, self._in_round_s)
        return renewed(partial(self._beat_again, dict(self._reading)), self._in_round_s)

    def _beat_again(self, reading: Mapping[str, object]) -> None:
        # Redis away for a moment: the round itself notices when it needs it.
        with suppress(BufferUnavailable):
            self._board.beat(self._member, reading, self._in_round_s)
