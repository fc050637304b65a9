"""Staggers a new live version over the replicas: which of them may swap it in now."""

import math
import time
from collections.abc import Callable

from ...buffer.board.version import BoardState, VersionState
from ...buffer.board.version_board import VersionBoard

#: The longest a replica waits while none of those before it makes progress: one may be unable to swap.
STALLED_S = 60.0

#: A replica asks again after this part of the time that those before it need at least. It reads all heartbeats then:
#: were that done every second, by all that wait, it would grow with the square of the fleet.
_PART = 1 / 2


class StaggeredRollout:
    """Lets replicas swap a version in one after another, by name; for one thread.

    So a version that the first one refuses is off the board before it reaches the last, and so is one whose drafts
    fail there within that time. Where versions come faster than replicas swap them in, every replica still makes
    progress: it waits for those that draft what it drafts itself, not for those that lack the newest.
    """

    def __init__(
        self, board: VersionBoard, replica: str, hold_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`hold_s` seconds pass between two replicas; 0: all swap at once."""
        self._board = board
        self.replica = replica
        self._hold_s = hold_s
        self._clock = clock
        self._waits: tuple[int, int, bool] | None = None  # own version, earlier replicas with it, any with the new one
        self._since_s = 0.0  # of the last change of `_waits`
        self._asks_at_s = -math.inf

    def may_swap_now(self, state: BoardState, own: int) -> bool:
        """Whether this replica, drafting with `own`, may swap the live version in now. Raises BufferUnavailable.

        A roll back waits for nobody.
        """
        row = state.rows.get(own)
        if not self._hold_s or state.is_returned_to or (row is not None and row.state is VersionState.ROLLED_BACK):
            return True
        now = self._clock()
        if self._waits is not None and self._waits[0] == own and now < self._asks_at_s:
            return False
        earlier = self._earlier(state)
        unswapped = earlier.count(own)
        has_begun = state.live in earlier
        if (own, unswapped, has_begun) != self._waits:
            self._waits = (own, unswapped, has_begun)
            self._since_s = now
        least_s = self._hold_s * max(unswapped - 1, 0)
        self._asks_at_s = min(now + least_s * _PART, self._since_s + STALLED_S)
        if not earlier:
            return True
        return now - self._since_s >= (self._hold_s if has_begun and not unswapped else STALLED_S)

    def _earlier(self, state: BoardState) -> list[int | None]:
        """Versions that the replicas before this one draft with; one with a canary takes no part."""
        earlier = [
            said
            for member, said in self._board.heartbeats().items()
            if member.startswith("replica:") and member < f"replica:{self.replica}" and said.swap == "on"
        ]
        if state.canary is None:  # a heartbeat that still reports a canary is out of date
            return [said.draft_version for said in earlier]
        drafting = [said.draft_version for said in earlier if not said.is_canary]
        return [number for number in drafting if number != state.canary]
