"""Figures as people read them."""

import math

from ....buffer.board.counters import MODEL_FREE, OLDER_DRAFTS
from ....buffer.board.version import OTHER_LABELS
from .amounts import Rounds


def length(rounds: Rounds) -> str:
    """Accept length with its 95 % interval, where there is one, and its rounds: `2.33 (2.21 .. 2.45, 812 rounds)`."""
    if not rounds.rounds:
        return "unknown (no round)"
    interval = rounds.interval
    bounds = f"{interval[0]:.2f} .. {interval[1]:.2f}, " if interval else ""
    return f"{rounds.accept_length:.2f} ({bounds}{rounds.rounds} rounds)"


def share(part: float, whole: float) -> str:
    """In percent; `unknown` of nothing."""
    if not whole:
        return "unknown"
    return "<1 %" if 0 < part < whole / 200 else f"{part / whole:.0%}".replace("%", " %")


def times(log: float) -> str:
    """A difference of logarithms as a factor: `x0.81`."""
    return f"x{math.exp(log):.2f}"


def label_name(label: str) -> str:
    """A label, or what stands for none and for several."""
    return {"": "requests without a label", OTHER_LABELS: "other labels"}.get(label, label)


def draft_name(draft: int) -> str:
    """A draft by its number, or what stands for several, or for none."""
    return {OLDER_DRAFTS: "older drafts", MODEL_FREE: "drafts without a model"}.get(draft, f"draft {draft}")
