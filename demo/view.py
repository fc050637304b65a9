"""The live view of the demo: what is served, which version serves it, and where every trace went.

`render` is a pure function of a ViewState; LiveView shows it on a terminal, or as plain lines elsewhere.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..dashboards.tables import RUN_COLUMNS, VersionLine, versions_table

_BARS = "▁▂▃▄▅▆▇█"
_SPARKLINE_CELLS = 60
_SHOWN_VERSIONS = 10
_PLAIN_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class TraceLine:
    """Where the traces are; see is_accounted."""

    captured: int = 0
    delivered: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)  # by the server: reason -> traces
    learned: int = 0
    held_out: int = 0
    rested: int = 0
    pending: int = 0
    set_aside: Mapping[str, int] = field(default_factory=dict)  # delivered, and neither of these: reason -> traces

    @property
    def is_accounted(self) -> bool:
        """Whether captured == delivered + dropped, and delivered == all that follows it here, added up."""
        arrived = self.learned + self.held_out + self.rested + self.pending + sum(self.set_aside.values())
        return self.delivered == arrived and self.captured == self.delivered + sum(self.dropped.values())


@dataclass(frozen=True, slots=True)
class ViewState:
    """Everything the view shows at one moment."""

    phase: str
    elapsed_s: float
    requests_done: int = 0
    requests_total: int = 0
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)  # domain -> pooled accept lengths, oldest first
    live: int | None = None
    versions: Sequence[VersionLine] = ()
    traces: TraceLine = field(default_factory=TraceLine)
    swaps: int = 0
    stall_ms: float | None = None  # longest wait for a token around the last swap

    @property
    def remaining_s(self) -> float | None:
        """Time left at the pace so far; None before the first request is done."""
        if not self.requests_done:
            return None
        return self.elapsed_s / self.requests_done * (self.requests_total - self.requests_done)


class LiveView:
    """Shows the latest state while its body runs: in place on a terminal, else one line every five seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._printed_s = float("-inf")

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, state: ViewState) -> None:
        """Draw `state`; call as often as it changes."""
        if self._live:
            self._live.update(render(state), refresh=True)
        elif time.monotonic() - self._printed_s >= _PLAIN_EVERY_S:
            self._printed_s = time.monotonic()
            self._console.print(plain_line(state), highlight=False, soft_wrap=True)


def render(state: ViewState) -> Group:
    """The whole view."""
    versions = versions_table(state.versions[-_SHOWN_VERSIONS:], RUN_COLUMNS)
    return Group(_headline(state), _curves(state.curves), versions, _flows(state))


def plain_line(state: ViewState) -> str:
    """The view in one line, for logs."""
    latest = [f"{domain} {values[-1]:.2f}" for domain, values in state.curves.items() if values]
    live = "-" if state.live is None else state.live
    return (
        f"[{state.elapsed_s:5.0f} s] {state.phase}: requests {state.requests_done}/{state.requests_total}, "
        f"accept length {', '.join(latest) or '-'}, live version {live}, swaps {state.swaps}, {_traces(state.traces)}"
    )


def sparkline(values: Sequence[float], lowest: float, highest: float) -> str:
    """The last values as bars, one cell each; `lowest` is the smallest bar, `highest` the tallest."""
    span = max(highest - lowest, 1e-9)
    top = len(_BARS) - 1
    cells = (round((value - lowest) / span * top) for value in values[-_SPARKLINE_CELLS:])
    return "".join(_BARS[min(max(cell, 0), top)] for cell in cells)


def _headline(state: ViewState) -> Text:
    left = "" if state.remaining_s is None else f", about {state.remaining_s:.0f} s left"
    live = "none" if state.live is None else str(state.live)
    requests = f"requests {state.requests_done}/{state.requests_total}"
    return Text(f"{state.phase}   {requests}   live version {live}   {state.elapsed_s:.0f} s{left}", style="bold")


def _curves(curves: Mapping[str, Sequence[float]]) -> Table:
    table = Table.grid(padding=(0, 2))
    highest = max((value for values in curves.values() for value in values), default=1.0)
    for domain, values in curves.items():
        latest = f"{values[-1]:.2f}" if values else "-"
        table.add_row(
            Text(f"accept length, {domain}"), Text(latest), Text(sparkline(values, 1.0, highest), style="cyan")
        )
    return table


def _flows(state: ViewState) -> Text:
    stall = "" if state.stall_ms is None else f", longest wait for a token around the last one {state.stall_ms:.0f} ms"
    return Text(f"traces: {_traces(state.traces)}\nswaps: {state.swaps}{stall}")


def _traces(line: TraceLine) -> str:
    return (
        f"captured {line.captured}, delivered {line.delivered}, dropped {_by_reason(line.dropped)}, "
        f"learned {line.learned}, held out {line.held_out}, rested {line.rested}, pending {line.pending}"
    ) + (f", set aside {_by_reason(line.set_aside)}" if any(line.set_aside.values()) else "")


def _by_reason(counts: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()) if count)
    return f"{sum(counts.values())}" + (f" ({reasons})" if reasons else "")
