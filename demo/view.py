"""The live view of the demo: what is served, which version drafts, and where every trace went.

`render` is a pure function of a ViewState; LiveView shows the result on a terminal, and plain lines elsewhere.
"""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..dashboards.tables import RUN_COLUMNS, VersionsTable
from ..rig.reader import TraceAccount
from .view_state import ViewState

_BARS = "▁▂▃▄▅▆▇█"
_SPARKLINE_CELLS = 60
_SHOWN_VERSIONS = 10
_PLAIN_EVERY_S = 5.0


class LiveView:
    """A context manager that shows the latest state: in place on a terminal, else one line every five seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._printed_s = float("-inf")
        self._answer = ""  # printed last

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, state: ViewState) -> None:
        """Draw `state`. Call it as often as the state changes: lines are printed at their own pace."""
        if self._live:
            self._live.update(render(state), refresh=True)
        elif time.monotonic() - self._printed_s >= _PLAIN_EVERY_S:
            self._printed_s = time.monotonic()
            self._console.print(plain_line(state), highlight=False, soft_wrap=True)
            if state.answer != self._answer:
                self._answer = state.answer
                self._console.print(f"        {state.answer}", highlight=False, markup=False, soft_wrap=True)


def render(state: ViewState) -> Group:
    """The whole view."""
    versions = VersionsTable(state.versions[-_SHOWN_VERSIONS:], RUN_COLUMNS)
    answer = [Text(state.answer, style="italic")] if state.answer else []
    return Group(_headline(state), _curves(state.curves), *answer, versions, _flows(state))


def plain_line(state: ViewState) -> str:
    """The view in one line, for logs."""
    latest = [f"{domain} {values[-1]:.2f}" for domain, values in state.curves.items() if values]
    live = "-" if state.live is None else state.live
    return (
        f"[{state.elapsed_s:5.0f} s] {state.phase}: requests {state.requests_done}/{state.requests_total}, "
        f"accept length {', '.join(latest) or '-'}, live version {live}, swaps {_known(state.swaps)}, "
        f"{_traces(state.traces)}"
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
    return Text(f"traces: {_traces(state.traces)}\nswaps: {_known(state.swaps)}{stall}")


def _traces(account: TraceAccount) -> str:
    silent = f" (the server said so {account.silent_s:.0f} s ago)" if account.silent_s else ""
    set_aside = f", set aside {_by_reason(account.set_aside)}" if any(account.set_aside.values()) else ""
    return (
        f"captured {_known(account.captured)}, delivered {_known(account.delivered)}, "
        f"dropped {'unknown' if account.dropped is None else _by_reason(account.dropped)}{silent}, "
        f"learned {account.learned}, held out {account.held_out}, rested {account.rested}, pending {account.pending}"
        f"{set_aside}"
    )


def _known(count: int | None) -> str:
    return "unknown" if count is None else str(count)


def _by_reason(counts: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()) if count)
    return f"{sum(counts.values())}" + (f" ({reasons})" if reasons else "")
