"""What each draft served between two swaps: so that a swap can be told by what came before it and what came after."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ...buffer.board.member_status import SwapSaid
from ..wire.request_forward import RequestForward, RequestVerify

#: Turns that are remembered; a heartbeat has room for no more swaps.
MAX_TURNS = 65
#: How much earlier than the end of its swap a round of a draft may seem to have been served.
SLACK_S = 1.0


@dataclass(slots=True)
class _Turn:
    draft: int
    began_at: float  # unix seconds, when its first round came here
    rounds: int = 0
    accepted: int = 0


class DraftTurns:
    """Counts rounds from one change of draft to the next; for the courier's thread."""

    def __init__(self) -> None:
        self._turns: deque[_Turn] = deque(maxlen=MAX_TURNS)

    def add(self, forward: RequestForward, now: float) -> None:
        """Count one forward; those without drafts change nothing."""
        if not isinstance(forward, RequestVerify) or not (forward.commit.tokens and len(forward.drafted)):
            return
        if not self._turns or self._turns[-1].draft != forward.draft_version:
            self._turns.append(_Turn(forward.draft_version, now))
        self._turns[-1].rounds += 1
        self._turns[-1].accepted += forward.accepted

    def told(self, swaps: Sequence[SwapSaid]) -> list[SwapSaid]:
        """`swaps` as the swapper reports them, oldest first, each with what was served before and after it if known."""
        ends = [*(swap.at for swap in swaps[1:]), float("inf")][: len(swaps)]
        return [self._told(swap, until) for swap, until in zip(swaps, ends, strict=True)]

    def _told(self, swap: SwapSaid, until: float) -> SwapSaid:
        before = [turn for turn in self._turns if turn.began_at < swap.at and turn.draft == swap.before]
        after = [turn for turn in self._turns if swap.at - SLACK_S <= turn.began_at < until]
        after = [turn for turn in after if turn.draft == swap.number]
        length_before, rounds_before = _figures(before[-1:])
        length_after, rounds_after = _figures(after[:1])
        return msgspec.structs.replace(
            swap,
            accept_length_before=length_before,
            rounds_before=rounds_before,
            accept_length_after=length_after,
            rounds_after=rounds_after,
        )


def _figures(turns: Sequence[_Turn]) -> tuple[float | None, int]:
    """Accept length, None where no round was seen, and rounds of one turn or none."""
    if not turns:
        return None, 0
    return round(1.0 + turns[0].accepted / turns[0].rounds, 3), turns[0].rounds
