"""Accept length over chunks as PNG, one panel per stream, where matplotlib is installed."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .results import Figures

COLUMNS = 2


def plot(lines: Sequence[Figures], rules: Sequence[str], path: Path) -> bool:
    """Write `path` with one curve per rule, the mean over seeds; False without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib as mpl  # noqa: PLC0415 - the bench runs without it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above, and only once the backend is chosen

    streams = list(dict.fromkeys(line.stream for line in lines))
    rows = -(-len(streams) // COLUMNS)
    figure, panels = plt.subplots(rows, COLUMNS, figsize=(14, 3.4 * rows), squeeze=False)
    for panel, stream in zip(panels.flat, streams, strict=False):
        for rule in rules:
            curves = [line.lengths for line in lines if (line.stream, line.rule) == (stream, rule)]
            panel.plot(np.mean(curves, axis=0), marker=".", label=rule)
        panel.set_title(stream)
        panel.set_xlabel("chunk")
        panel.set_ylabel("accept length")
    for panel in panels.flat[len(streams) :]:
        panel.set_visible(False)
    panels.flat[0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
    return True
