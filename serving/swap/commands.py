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
    file: str  # its path, or where to fetch it from
    sha256: str
