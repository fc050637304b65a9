"""What a replica's swapper has done, for whoever reports it."""

from collections import deque

from ...buffer.board.member_status import MemberStatus, RefusalSaid, SwapSaid

#: Swaps and refusals that a replica reports in its heartbeat; the board's events hold the whole history.
REPORTED_SWAPS = 64
REPORTED_REFUSALS = 2
MAX_WHY_CHARS = 160


class SwapRecord:
    """Swaps, refusals and where a canary drafts. The swapper's thread writes, and any may read."""

    def __init__(self) -> None:
        self.is_canary = False  # whether a canary drafts here, or is about to
        self.is_canary_out = False  # whether one drafts on any replica, by the last look at the board
        self.done = 0  # swaps so far
        self.refused: dict[tuple[int, float], str] = {}  # (number, when it was promoted) -> why
        self._swaps: deque[SwapSaid] = deque(maxlen=REPORTED_SWAPS)

    @property
    def last(self) -> SwapSaid | None:
        """The newest swap; None before any."""
        return self._swaps[-1] if self._swaps else None

    def note(self, swap: SwapSaid) -> None:
        """One more swap is done."""
        self._swaps.append(swap)
        self.done += 1

    def fill(self, said: MemberStatus) -> None:
        """Put it into the replica's heartbeat."""
        refused = dict(self.refused)
        said.swaps = list(self._swaps)
        said.swaps_refused = len(refused)
        said.refusals = [
            RefusalSaid(number=number, promoted_at=at, why=why[:MAX_WHY_CHARS])
            for (number, at), why in [*refused.items()][-REPORTED_REFUSALS:]
        ]
        said.is_canary = self.is_canary
        said.is_canary_out = self.is_canary_out
