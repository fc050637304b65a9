"""Curves as PNG, where matplotlib is installed: accepted drafts per round against traces, steps and seconds."""

import importlib.util
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from .runs import Point, Run
from .tables import Group, groups

AXES: dict[str, Callable[[Point], float]] = {
    "traces seen": lambda point: point.end,
    "optimiser steps": lambda point: point.steps,
    "seconds of training": lambda point: point.seconds,
}


def plot_all(runs: Sequence[Run], folder: Path) -> list[Path]:
    """One picture per stage, setting and start; [] without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    return [_plot(group, folder / f"{group.name}.png") for group in groups(runs)]


def _plot(group: Group, path: Path) -> Path:
    import matplotlib as mpl  # noqa: PLC0415 - the bench runs without it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above, and only once the backend is chosen

    figure, panels = plt.subplots(1, len(AXES), figsize=(16, 5), sharey=True)
    for panel, (label, at) in zip(panels, AXES.items(), strict=True):
        for row in group.rows():
            panel.plot(*_curve(list(group.of(row).values()), at), marker=".", label=row)
        panel.set_xlabel(label)
    panels[0].axvline(group.runs[0].shift_at, color="grey", linestyle=":")
    panels[0].set_ylabel("accepted drafts per round")
    panels[0].legend(fontsize="small")
    figure.suptitle(f"{group.stage.name}: {group.setting.name}, {group.start} head, mean over seeds")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return path


def _curve(runs: Sequence[Run], at: Callable[[Point], float]) -> tuple[list[float], list[float]]:
    together = list(zip(*(run.points for run in runs), strict=True))
    across = [statistics.fmean(map(at, points)) for points in together]
    return across, [statistics.fmean(point.accepted for point in points) for points in together]
