"""Tokens per second over the stream, by concurrency: each arm over the server without a draft."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from ...rig.ratio import ratio
from .arms import PLAIN
from .figures import has
from .recorded import Run


def plot(runs: Sequence[Run], file: Path) -> None:
    """Write a PNG: one panel per concurrency, geometric means over the runs, dotted lines where the text changes."""
    concurrencies = sorted({concurrency for run in runs for concurrency in run.concurrencies})
    figure, axes = plt.subplots(
        len(concurrencies), 1, figsize=(9, 2.6 * len(concurrencies)), sharex=True, squeeze=False
    )
    for axis, concurrency in zip(axes[:, 0], concurrencies, strict=True):
        _panel(axis, runs, concurrency)
    axes[0, 0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, fontsize="small", frameon=False)
    axes[-1, 0].set_xlabel("chunk of the stream")
    axes[-1, 0].xaxis.get_major_locator().set_params(integer=True)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    plt.close(figure)


def _panel(axis: Axes, runs: Sequence[Run], concurrency: int) -> None:
    for arm in runs[0].conditions.arms:
        if arm != PLAIN:
            points = _points(runs, arm, concurrency)
            axis.plot([*points], [*points.values()], marker=".", label=arm)
    axis.axhline(1.0, color="black", linewidth=0.8)
    for at in _shifts(runs[0]):
        axis.axvline(at - 0.5, color="grey", linestyle=":")
    axis.set_ylabel(f"over no draft,\nconcurrency {concurrency}")


def _points(runs: Sequence[Run], arm: str, concurrency: int) -> dict[int, float]:
    rates: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        for block in run.at(concurrency):
            if has(block, arm, PLAIN):
                pair = block.turn(arm).tokens_per_second, block.turn(PLAIN).tokens_per_second
                rates.setdefault(block.chunk, []).append(pair)
    return {chunk: ratio(*zip(*pairs, strict=True)).mean for chunk, pairs in sorted(rates.items())}


def _shifts(run: Run) -> list[int]:
    domains = dict(sorted((block.chunk, block.domain) for block in run.blocks))
    numbers = [*domains]
    return [b for a, b in pairwise(numbers) if domains[a] != domains[b]]
