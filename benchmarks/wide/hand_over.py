"""What handing on a forward takes of the scheduler's thread, by the width of its features."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...rig.ratio import Ratio, ratio
from ..measure.paired import in_rounds
from .deployed import Deployed, deployed
from .traffic import ActedScheduler, Load

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Of one width: microseconds per forward of the scheduler's thread, the median of all rounds."""

    hidden: int
    forward_bytes: float  # of its tensors, the mean
    hooks_us: float
    hand_over_us: float
    over_narrowest: Ratio  # of the hand-over, round by round

    def line(self) -> str:
        """One row of the table."""
        size = f"{self.forward_bytes:,.0f}"
        hooks = f"{self.hooks_us:.0f}"
        return f"| {self.hidden} | {size} | {hooks} | {self.hand_over_us:.0f} | {self.over_narrowest.text()} |"


def by_width(folder: Path, load: Load, hiddens: Sequence[int], rounds: int) -> list[HandOver]:
    """The same requests with features of every width of `hiddens`, in rounds of random order; narrowest first."""
    widths = sorted(hiddens)
    with deployed(folder) as there:
        runs = {str(hidden): _Run(there, replace(load, hidden=hidden)) for hidden in widths}
        for run in runs.values():  # the first one pays for what is loaded and allocated once
            run()
            run.forget()
        figures = in_rounds(runs, rounds, SEED)
    narrowest = figures[str(widths[0])]
    return [
        HandOver(
            hidden=hidden,
            forward_bytes=statistics.fmean(runs[str(hidden)].forward_bytes),
            hooks_us=statistics.median(runs[str(hidden)].hooks_us),
            hand_over_us=statistics.median(figures[str(hidden)]),
            over_narrowest=ratio(figures[str(hidden)], narrowest),
        )
        for hidden in widths
    ]


class _Run:
    """One way: streams `load` and waits until the courier has delivered it."""

    def __init__(self, there: Deployed, load: Load) -> None:
        self._there = there
        self._load = load
        self.hooks_us: list[float] = []
        self.forward_bytes: list[float] = []

    def __call__(self) -> float:
        """Microseconds that handing on one forward took."""
        captured = self._there.said().account.captured
        spent = ActedScheduler(self._load, self._there.capture, self._there.hold, SEED).run()
        self._there.settle(captured + self._load.requests)
        self.hooks_us.append(1e6 * spent.hooks_s / spent.forwards)
        self.forward_bytes.append(spent.captured_bytes / spent.forwards)
        return 1e6 * spent.hand_over_s / spent.forwards

    def forget(self) -> None:
        """Drop what was kept of earlier runs."""
        self.hooks_us.clear()
        self.forward_bytes.clear()
