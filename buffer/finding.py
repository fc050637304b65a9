"""One sentence of `paceline doctor` or `paceline status`, and what all of them together mean."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from .plain_text import printable


class Level(StrEnum):
    """How a finding is meant. NOTE: works, and there is something to know."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one topic, in one sentence that says what to do where something is wrong."""

    topic: str
    level: Level
    sentence: str

    def line(self) -> str:
        """As `paceline doctor` prints it, in printable characters."""
        return printable(f"{self.level:<8} {self.topic:<9} {self.sentence}")


#: Exit codes of the commands that answer a question.
WELL = 0
SOMETHING_WRONG = 1
CANNOT_TELL = 2


def exit_code(findings: Iterable[Finding]) -> int:
    """0 when all is well, 1 when something is wrong, else 2 when something could not be told."""
    levels = {finding.level for finding in findings}
    if Level.WRONG in levels:
        return SOMETHING_WRONG
    return CANNOT_TELL if Level.UNKNOWN in levels else WELL


def worst(codes: Iterable[int]) -> int:
    """One exit code for several answers: what is wrong comes before what cannot be told."""
    found = set(codes)
    if found - {WELL, CANNOT_TELL}:  # a process that was killed has not looked at the end
        return SOMETHING_WRONG
    return CANNOT_TELL if CANNOT_TELL in found else WELL
