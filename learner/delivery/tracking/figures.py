"""Pictures for reviewers: what the gate compared, and whether its figures came true. Drawn without a display."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_BETTER = "#2a7f62"
_WORSE = "#b3423a"
_GREY = "#666666"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """One draft: what the gate measured of it, and what it then served."""

    number: int
    predicted: float
    served: float
    low: float | None = None  # of what was served; None: not known
    high: float | None = None
    predicted_low: float | None = None
    predicted_high: float | None = None


def gate_figure(rows: Sequence[Mapping[str, Any]]) -> Any:
    """The paired differences in accept length, request by request, the worst first; at least one row."""
    gains = sorted(row["accept_length"] - row["reference_accept_length"] for row in rows)
    figure, axes = _drawn(7.0, 3.6)
    axes.bar(range(len(gains)), gains, width=1.0, color=[_BETTER if gain > 0 else _WORSE for gain in gains])
    axes.axhline(0.0, color=_GREY, linewidth=0.8)
    mean = sum(gains) / len(gains)
    axes.axhline(mean, color="black", linewidth=1.2, linestyle="--", label=f"mean of requests {mean:+.3f}")
    better = sum(gain > 0 for gain in gains)
    worse = sum(gain < 0 for gain in gains)
    axes.set_title(f"{len(gains)} requests: {better} better, {worse} worse, {len(gains) - better - worse} equal")
    axes.set_xlabel("request, the worst first")
    axes.set_ylabel("accept length\nagainst the reference")
    axes.legend(frameon=False)
    return figure


def calibration_figure(drafts: Sequence[Calibrated], shown: int) -> Any:
    """Draw what was predicted of at least one draft against what it served; the draft `shown` stands out."""
    figure, axes = _drawn(5.0, 4.6)
    figures = [(d.predicted, d.served, d.low, d.high, d.predicted_low, d.predicted_high) for d in drafts]
    ends = [value for each in figures for value in each if value is not None]
    span = min(ends) - 0.1, max(ends) + 0.1
    axes.plot(span, span, color=_GREY, linewidth=0.8, linestyle="--", label="as predicted")
    for draft in drafts:
        colour = _WORSE if draft.number == shown else _GREY
        if draft.low is not None and draft.high is not None:
            axes.plot([draft.predicted] * 2, [draft.low, draft.high], color=colour, linewidth=1.2)
        if draft.predicted_low is not None and draft.predicted_high is not None:
            axes.plot([draft.predicted_low, draft.predicted_high], [draft.served] * 2, color=colour, linewidth=0.6)
        axes.plot([draft.predicted], [draft.served], "o", color=colour, markersize=5)
        axes.annotate(str(draft.number), (draft.predicted, draft.served), (5, 3), textcoords="offset points")
    axes.set_title(f"accept length of {len(drafts)} drafts; draft {shown} is coloured")
    axes.set_xlabel("predicted, with its 95 % interval")
    axes.set_ylabel("served, with its 95 % interval")
    axes.legend(frameon=False)
    return figure


def lineage_figure(drafts: Sequence[Calibrated]) -> Any:
    """Draw what was predicted and what was served, draft by draft. At least one draft."""
    figure, axes = _drawn(7.0, 3.6)
    numbers = [draft.number for draft in drafts]
    axes.plot(numbers, [draft.predicted for draft in drafts], "s--", color=_GREY, label="predicted, 95 % interval")
    axes.plot(numbers, [draft.served for draft in drafts], "o-", color=_BETTER, label="served, 95 % interval")
    for draft in drafts:
        beside = draft.number + 0.08  # two intervals of one draft would hide each other
        if draft.predicted_low is not None and draft.predicted_high is not None:
            axes.plot([beside] * 2, [draft.predicted_low, draft.predicted_high], color=_GREY, linewidth=1.2)
        if draft.low is not None and draft.high is not None:
            axes.plot([draft.number] * 2, [draft.low, draft.high], color=_BETTER, linewidth=1.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("draft")
    axes.set_ylabel("accept length")
    axes.legend(frameon=False)
    return figure


def _drawn(width_in: float, height_in: float) -> tuple[Figure, Axes]:
    """An empty picture of this size, and its axes."""
    # Fixed margins: a layout that fits them to the text draws everything twice, in time that a learner could learn.
    figure = Figure(figsize=(width_in, height_in))
    left = 0.95 / width_in
    bottom = 0.55 / height_in
    right = 1.0 - 0.15 / width_in
    top = 1.0 - 0.35 / height_in
    return figure, figure.add_axes((left, bottom, right - left, top - bottom))
