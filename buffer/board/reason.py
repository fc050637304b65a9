"""Reason: why a version, a learner or an alarm is where it is, as a code with figures.

Whoever decides writes one; policies/verdict_words.py alone makes words of it. What an operator typed stays text.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ReasonCode(StrEnum):
    """What was found. A code of a later release is read as UNKNOWN."""

    PROVEN = "proven"
    TRUSTED = "trusted"
    NOT_PROVEN = "not_proven"
    MAY_HARM = "may_harm"
    HARMS = "harms"
    PUT_BACK = "put_back"
    RUINED = "ruined"
    UNJUDGED = "unjudged"
    NO_LIVE = "no_live"
    LIVE_UNREADABLE = "live_unreadable"
    NOT_STORED = "not_stored"
    LIVE_MOVED = "live_moved"
    NO_CANARY = "no_canary"
    LEARNER_STOPPED = "learner_stopped"
    INITIAL = "initial"
    REPLACED = "replaced"
    OVERTAKEN = "overtaken"
    WEIGHTS_REFUSED = "weights_refused"
    CANARY_HARMS = "canary_harms"
    CANARY_GAINS = "canary_gains"
    CANARY_LOSES = "canary_loses"
    CANARY_EQUAL = "canary_equal"
    CANARY_UNPROVEN = "canary_unproven"
    CANARY_WAITS = "canary_waits"
    CANARY_OVERDUE = "canary_overdue"
    ALARM = "alarm"
    LEARNING_SET = "learning_set"
    FEW_FLAT_ROUNDS = "few_flat_rounds"
    JUST_AT_REST = "just_at_rest"
    ACCEPTED_FELL = "accepted_fell"
    UNEXPLORED = "unexplored"
    NOTHING_NEW = "nothing_new"
    SET_ASIDE = "set_aside"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> "ReasonCode | None":
        return cls.UNKNOWN if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Reason:
    """A code, and by name the figures that it was decided on: numbers and short texts."""

    code: ReasonCode
    figures: Mapping[str, float | str] = field(default_factory=dict)

    def but(self, code: ReasonCode | None = None, /, **figures: float | str | None) -> "Reason":
        """The same with another code, or with more figures; one that is None or not finite is left out."""
        more = because(self.code if code is None else code, **figures)
        return Reason(more.code, {**self.figures, **more.figures})


def because(code: ReasonCode, /, **figures: float | str | None) -> Reason:
    """A reason with those of the figures that are known: neither None nor infinite, which JSON has not."""
    known: dict[str, float | str] = {}
    for name, value in figures.items():
        if isinstance(value, str):
            known[name] = value
        elif value is not None and math.isfinite(value):
            known[name] = float(value)
    return Reason(code, known)


#: Of an act on a board: what was found, or what an operator typed.
Why = Reason | str
