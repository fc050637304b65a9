"""What each draft served between two swaps: so that a swap can be told by what came before it and what came after."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

    def told(self, swaps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """`swaps` as the swapper reports them, oldest first, each with what was served before and after it if known."""
        ends = [*(swap["at"] for swap in swaps[1:]), float("inf")]
        return [self._told(swap, until) for swap, until in zip(swaps, ends, strict=True)]

    def _told(self, swap: Mapping[str, Any], until: float) -> dict[str, Any]:
        before = [turn for turn in self._turns if turn.began_at < swap["at"] and turn.draft == swap.get("before")]
        after = [turn for turn in self._turns if swap["at"] - SLACK_S <= turn.began_at < until]
        after = [turn for turn in after if turn.draft == swap.get("number")]
        return {
            **swap,
            **_figures("before", before[-1] if before else None),
            **_figures("after", after[0] if after else None),
        }


def _figures(when: str, turn: _Turn | None) -> dict[str, Any]:
    """None where no round was seen: the accept length is not known."""
    if turn is None:
        return {f"accept_length_{when}": None, f"rounds_{when}": 0}
    length = round(1.0 + turn.accepted / turn.rounds, 3)
    return {f"accept_length_{when}": length, f"rounds_{when}": turn.rounds}
