"""What one step's rollouts were like, as numbers for a trainer's log. A figure that is not known is left out."""

import math
from collections.abc import Sequence

from .completion import Completion

#: Requests done when the tail begins.
_MOST = 0.9


def rollout_figures(done: Sequence[Completion], seconds: float) -> dict[str, float]:
    """Figures of all completions of a step, which took `seconds`.

    `rollout/accept_length` is pooled: tokens per verify round, bonus token included, 1 + accepted / rounds.
    """
    found = {"rollout/seconds": seconds, "rollout/tail_seconds": tail_seconds([each.seconds for each in done])}
    rounds = sum(each.rounds or 0 for each in done)
    if rounds:
        found["rollout/accept_length"] = 1.0 + sum(each.accepted or 0 for each in done) / rounds
        found["rollout/rounds_per_token"] = rounds / sum(len(each.token_ids) for each in done)
    return found


def tail_seconds(ends: Sequence[float]) -> float:
    """From the moment nine tenths of the requests, rounded up, had ended to the end of the last."""
    in_order = sorted(ends)
    return in_order[-1] - in_order[math.ceil(_MOST * len(in_order)) - 1]


def draft_lag(draft_target: str, served: Sequence[str]) -> int | None:
    """How many target versions came after the one that a draft was trained on; None where that is not known.

    `served` are the target versions so far, oldest first, the last one in force. A version from before them counts
    when both are whole numbers.
    """
    if draft_target in served:
        return len(served) - 1 - max(i for i, version in enumerate(served) if version == draft_target)
    if served and draft_target.isdecimal() and served[0].isdecimal() and int(draft_target) < int(served[0]):
        return len(served) - 1 + int(served[0]) - int(draft_target)
    return None
