"""One sentence of `paceline doctor`, and what all of them together mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ...buffer.plain_text import printable


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


def exit_code(findings: Sequence[Finding]) -> int:
    """0 when all is well, 1 when something is wrong, else 2 when something could not be told."""
    levels = {finding.level for finding in findings}
    if Level.WRONG in levels:
        return 1
    return 2 if Level.UNKNOWN in levels else 0
