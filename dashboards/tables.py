"""What the board and the heartbeats hold, for people: draft versions as rows and as a table, and counts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from ..buffer.board.version import (
    JUDGED_SCORE,
    PREDICTED_SCORE,
    PREDICTED_STANDARD_ERROR,
    BoardRow,
    BoardState,
    VersionState,
)
from ..buffer.plain_text import utc_time
from ..policies import judged_on
from ..policies.readings.ratio_sums import Z_95, RatioSums
from ..policies.verdict_words import figures, lead, sentence
from .cells import cell, error, interval, length

_STYLES = {
    VersionState.LIVE: "bold green",
    VersionState.CANARY: "yellow",
    VersionState.REFUSED: "dim",
    VersionState.ROLLED_BACK: "red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionLine:
    """One draft version; accept lengths include the bonus token and are None where nothing was measured."""

    number: int
    state: VersionState
    reason: str  # the long form: of the last change of state, and what the version was judged and trained on
    lead: str = ""  # of the last change of state
    figures: str = ""  # the same as a row of numbers
    judged_accept_length: float | None = None
    served_accept_length: float | None = None
    rounds: int = 0  # verify rounds that the served accept length was pooled over
    parent: int | None = None  # None: the draft the server was started with
    changed_at: float = 0.0  # unix seconds of the last change of state
    served_interval: tuple[float, float] | None = None  # 95 %, requests drawn as wholes; None: too few of them
    requests: int = 0  # that the served accept length was pooled over
    error_half_width: float | None = None  # of the 95 % interval of the error, by both samples; None: too few in one
    predicted_accept_length: float | None = None

    @property
    def prediction_error(self) -> float | None:
        """By how much more was served than was predicted; None while either is unknown."""
        if self.served_accept_length is None or self.predicted_accept_length is None:
            return None
        return self.served_accept_length - self.predicted_accept_length


#: Heading -> the cell below it.
_CELLS: Mapping[str, Callable[[VersionLine], str]] = {
    "version": lambda line: str(line.number),
    "state": lambda line: line.state.value,
    "parent": lambda line: "" if line.parent is None else str(line.parent),
    "served": lambda line: length(line.served_accept_length),
    "95 %": lambda line: interval(line.served_interval),
    "requests": lambda line: str(line.requests) if line.requests else "-",
    "rounds": lambda line: str(line.rounds) if line.rounds else "-",
    "predicted": lambda line: length(line.predicted_accept_length),
    "error": lambda line: error(line.prediction_error, line.error_half_width),
    "changed": lambda line: utc_time(line.changed_at),
    "reason": lambda line: line.lead,
}
_TITLE = "draft versions"
_LONG = "reason"
_LONG_WIDTH = 24  # the one column whose text wraps, and the fewest characters it may have
#: Left out one after another where a terminal is too narrow for all; `versions show N` has everything.
_DROPPED = ("parent", "changed", "error", "requests", "rounds", "predicted", "95 %")
_ANY_WIDTH = 10_000  # characters; rich measures nothing beyond the width that it is given
_LEFT = frozenset(("state", "changed", "reason"))

#: No quality: the requests that a draft was predicted by are not those that it served.
_DIM = frozenset(("predicted",))

#: Columns of `paceline versions`.
BOARD_COLUMNS = ("version", "state", "parent", "served", "95 %", "requests", "predicted", "error", "changed", "reason")
#: Columns for what one run has seen of each version.
RUN_COLUMNS = ("version", "state", "served", "95 %", "rounds", "predicted", "reason")


def version_lines(state: BoardState, served: Mapping[int, RatioSums] | None = None) -> list[VersionLine]:
    """All versions, oldest first; `served` holds by number what each had accepted, where that is known."""
    lines = []
    for number, row in sorted(state.rows.items()):
        sums = (served or {}).get(number, RatioSums())
        scores = row.version.scores
        lines.append(
            VersionLine(
                number=number,
                state=row.state,
                reason=_reason(row),
                lead=lead(row.why),
                figures=figures(row.why),
                judged_accept_length=scores.get(JUDGED_SCORE),
                predicted_accept_length=scores.get(PREDICTED_SCORE),
                served_accept_length=sums.accept_length,
                rounds=sums.rounds,
                parent=row.version.parent,
                changed_at=row.changed_at,
                served_interval=sums.interval,
                requests=sums.requests,
                error_half_width=_half_width(scores.get(PREDICTED_STANDARD_ERROR), sums.standard_error),
            )
        )
    return lines


def _half_width(predicted_error: float | None, served_error: float | None) -> float | None:
    """Of the difference of two accept lengths of other requests each: were their traffic the same, it is noise."""
    return None if predicted_error is None or served_error is None else Z_95 * math.hypot(predicted_error, served_error)


@dataclass(frozen=True, slots=True)
class VersionsTable:
    """For a terminal: one row per version in the given order, of a reason its lead.

    Where a terminal is too narrow, columns of _DROPPED are left out, which it says; where that does not help, each
    version is a paragraph. The live version is green, unless no server is alive to draft with it.
    """

    lines: Sequence[VersionLine]
    columns: Sequence[str] = BOARD_COLUMNS
    is_served: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rich's protocol: what it prints in place of this."""
        wide = options.update(max_width=_ANY_WIDTH)
        dropped = [name for name in _DROPPED if name in self.columns]
        for count in range(len(dropped) + 1):
            shown = [name for name in self.columns if name not in dropped[:count]]
            if console.measure(self._table(shown, _LONG_WIDTH), options=wide).maximum <= options.max_width:
                yield self._table(shown)
                if count:
                    yield cell(
                        f"too narrow for {', '.join(dropped[:count])}: `paceline versions show N` has all", "dim"
                    )
                return
        yield cell(_TITLE, "italic")
        yield from map(self._paragraph, self.lines)

    def _table(self, columns: Sequence[str], long_width: int | None = None) -> Table:
        table = Table(title=_TITLE, title_justify="left", expand=False)
        for heading in columns:
            justify: Literal["left", "right"] = "left" if heading in _LEFT else "right"
            if heading == _LONG:
                table.add_column(heading, justify=justify, overflow="fold", width=long_width)
            else:
                table.add_column(heading, justify=justify, no_wrap=True)
        for line in self.lines:
            cells = self._cells(line)
            table.add_row(*(cells[name] for name in columns), style=self._style(line))
        return table

    def _paragraph(self, line: VersionLine) -> Text:
        """All cells that hold something, and the long one in a line of its own."""
        cells = self._cells(line)
        long = cells.pop(_LONG, None)
        facts = Text(", ").join(Text.assemble(f"{heading} ", text) for heading, text in cells.items() if text)
        return Text.assemble(facts, *(("\n", long) if long else ()), style=self._style(line) or "")

    def _cells(self, line: VersionLine) -> dict[str, Text]:
        return {name: cell(_CELLS[name](line), "dim" if name in _DIM else "") for name in self.columns}

    def _style(self, line: VersionLine) -> str | None:
        return _STYLES.get(line.state) if self.is_served or line.state is not VersionState.LIVE else None


def _reason(row: BoardRow) -> str:
    on = row.version.judged_on
    trained = ", ".join(row.version.trained_targets)
    judged = "" if on is None else judged_on.sentence(on)
    return "; ".join(filter(None, (sentence(row.why), judged, trained and f"trained on target {trained}")))
