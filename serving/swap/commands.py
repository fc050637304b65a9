"""Commands of the swapper to SGLang's scheduler ranks, and their answers."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Act(StrEnum):
    """What a command asks for."""

    PREPARE = "prepare"
    COMMIT = "commit"
    ABANDON = "abandon"


class Readiness(IntEnum):
    """How far a rank is; the least of all ranks decides, so that all copy at the same iteration or none does."""

    REFUSED = 0
    NOT_YET = 1
    READY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCommand:
    """Travels among the scheduler's ranks with SGLang's own request broadcast."""

    act: Act
    attempt: int  # one per call of `swap`; answers to an attempt that was abandoned are ignored
    number: int
    file: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapOutcome:
    """What a commit did. `running` requests were in flight and continued.

    A late one was asked for, given up on, and done when the scheduler reached its next iteration after all.
    """

    number: int
    commit_ms: float
    stage_ms: float
    running: int
    at: float  # unix seconds
    late_s: float = 0.0  # since it was given up on; 0 in time
    before: int | None = None  # the draft that it replaced; None: not known
    asked_at: float | None = None  # unix seconds of the board's event; None: not known
