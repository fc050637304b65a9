"""Two drafts side by side: what differs in where they come from, what was predicted, and what they served."""

import math
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..policies.readings.ratio_sums import Z_95, RatioSums
from .cells import cell
from .draft_card import DraftCard, sums_json


@dataclass(frozen=True, slots=True)
class Difference:
    """What the second draft served beyond the first, in accept length; None where one of them served too little."""

    value: float | None
    low: float | None = None  # of the 95 % interval, requests drawn as wholes
    high: float | None = None

    def sentence(self, one: int, other: int) -> str:
        """In words, with what the interval does not hold."""
        if self.value is None or self.low is None or self.high is None:
            return f"served, draft {other} against draft {one}: unknown, one of them served too few requests"
        verdict = "no difference shown" if self.low <= 0.0 <= self.high else "more" if self.value > 0 else "less"
        figures = f"{self.value:+.2f} ({self.low:+.2f} .. {self.high:+.2f})"
        return (
            f"served, draft {other} against draft {one}: {figures}, {verdict}; "
            "they served other requests, so a change of traffic is in it too"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two draft cards."""

    one: DraftCard
    other: DraftCard

    @property
    def served(self) -> Difference:
        """The second minus the first, as if their requests were drawn apart."""
        return difference(self.one.served.sums, self.other.served.sums)

    def as_json(self) -> dict[str, object]:
        """As JSON values."""
        gap = self.served
        totals = [sums_json(card.served.sums) for card in (self.one, self.other)]
        return {
            "drafts": [self.one.as_json(), self.other.as_json()],
            "served": totals,
            "difference": {"value": gap.value, "low": gap.low, "high": gap.high},
        }

    def view(self) -> RenderableType:
        """For a terminal; rows that differ stand out by a mark and by their style."""
        numbers = self.one.line.number, self.other.line.number
        table = Table(title=f"drafts {numbers[0]} and {numbers[1]}", title_justify="left", expand=False)
        for heading in ("", "", *(f"draft {number}" for number in numbers)):
            table.add_column(heading, overflow="fold")
        theirs = self.other.facts()
        for heading, ours in self.one.facts().items():
            style = "dim" if heading.endswith("(no quality)") else ""
            mark = "" if ours == theirs[heading] else "differs"
            table.add_row(*(cell(text, style) for text in (heading, mark, ours, theirs[heading])))
        return Group(table, Text(self.served.sentence(*numbers)))


def difference(one: RatioSums, other: RatioSums) -> Difference:
    """Standard errors of independent means add as squares."""
    lengths = (one.accept_length, other.accept_length)
    errors = (one.standard_error, other.standard_error)
    if None in lengths or None in errors:
        return Difference(None)
    (a, b) = lengths
    half = Z_95 * math.hypot(*(error or 0.0 for error in errors))
    gap = (b or 0.0) - (a or 0.0)
    return Difference(gap, gap - half, gap + half)
