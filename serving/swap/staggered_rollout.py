"""Replica by replica: who may take a new live version over now."""

import time
from collections.abc import Callable

from ...buffer.base import VersionBoard
from ...buffer.version import BoardState, VersionState

#: The longest a replica waits for those before it without any of them getting on: one may not swap at all.
STALLED_S = 60.0


class StaggeredRollout:
    """Lets replicas take a version over one after another, by name; for one thread.

    So a version that the first one refuses is off the board before it reaches the last, and so is one that dies on it
    within that time. Where versions come faster than replicas take them over, each of them gets on all the same: it
    waits for those that still draft what it drafts, not for those that lack the newest.
    """

    def __init__(
        self, board: VersionBoard, replica: str, hold_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`hold_s` seconds lie between two replicas; 0: all take it over at once."""
        self._board, self._member, self._hold_s, self._clock = board, f"replica:{replica}", hold_s, clock
        self._waits: tuple[int, int, bool] | None = None  # own version, earlier replicas with it, any with the new one
        self._since_s = 0.0  # when that changed last

    def may_swap_now(self, state: BoardState, own: int) -> bool:
        """Whether this replica, drafting with `own`, may swap the live version in now. Raises BufferUnavailable.

        A roll back waits for nobody.
        """
        row = state.rows.get(own)
        if not self._hold_s or state.is_returned_to or (row is not None and row.state is VersionState.ROLLED_BACK):
            return True
        earlier, now = self._earlier(state), self._clock()
        behind, has_begun = earlier.count(own), state.live in earlier
        if (own, behind, has_begun) != self._waits:
            self._waits, self._since_s = (own, behind, has_begun), now
        if not earlier:
            return True
        return now - self._since_s >= (self._hold_s if has_begun and not behind else STALLED_S)

    def _earlier(self, state: BoardState) -> list[object]:
        """Versions that the replicas before this one draft with; one with a canary takes no part."""
        readings = [
            reading
            for member, reading in self._board.heartbeats().items()
            if member.startswith("replica:") and member < self._member and reading.get("swap") == "on"
        ]
        if state.canary is None:  # one that still says it has a canary will say otherwise in a moment
            return [reading.get("draft_version") for reading in readings]
        drafting = [reading.get("draft_version") for reading in readings if not reading.get("is_canary")]
        return [number for number in drafting if number != state.canary]
