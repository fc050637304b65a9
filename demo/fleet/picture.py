"""The closing picture of a fleet, drawn from its JSON report: accept length of every replica, one above the other."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..picture import CAPTION, TURN_CAPTION, axis_end_s, draw_legend, draw_timeline, leave_room, trim

_ROW_INCHES = 2.1
_FRAME_INCHES = 1.9  # for title, legend and caption


def write_picture(report: Mapping[str, Any], path: Path) -> None:
    """Write the picture of a report, as `report.as_json` makes it, to `path` as PNG; replaces a file that is there."""
    fleet_figure(report).savefig(path, dpi=110, format="png")


def fleet_figure(report: Mapping[str, Any]) -> Any:
    """The picture as a matplotlib Figure: a row per replica with its own swaps, and the same axes for all."""
    replicas = report["replicas"]
    height = _FRAME_INCHES + _ROW_INCHES * len(replicas)
    figure = Figure(figsize=(10.4, height))
    place = {"left": 0.075, "right": 0.985, "top": 1.0 - 0.85 / height, "bottom": 1.3 / height, "hspace": 0.42}
    rows = figure.subplots(len(replicas), 1, sharex=True, sharey=True, squeeze=False, gridspec_kw=place)[:, 0]
    end_s = max(axis_end_s(each["timeline"]) for each in replicas.values())
    for axes, (name, each) in zip(rows, replicas.items(), strict=True):
        draw_timeline(axes, each["timeline"], end_s)
        axes.set_ylabel(f"{name}\n{each['requests']} requests")
        trim(axes)
    leave_room(rows[-1], 0.25)  # the same for all
    rows[-1].set_xlabel("time since the first request (seconds)")
    line = max(replicas.values(), key=lambda each: int(each["swaps"]))["timeline"]
    draw_legend(rows[-1], line, [*dict.fromkeys(turn["domain"] for turn in report["timeline"]["domains"])], 0.28)
    lengths = report["accept_length"]
    figure.suptitle(
        f"{len(replicas)} servers behind SGLang's router, one learner: {lengths['first']:.2f} -> "
        f"{lengths['final']:.2f} tokens per step",
        fontsize=13, fontweight="bold", x=0.012, ha="left",
    )  # fmt: skip
    turn = TURN_CAPTION if len(report["timeline"]["domains"]) > 1 else ""
    figure.supxlabel(f"{CAPTION}{turn}.", fontsize=10, y=0.012)
    return figure
