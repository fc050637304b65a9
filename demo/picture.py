"""The closing picture of the demo, drawn from its JSON report: accept length over time, and what became of each draft.

    python -m paceline.demo.picture report.json demo.png

Drawn without a display. Artists that stand for something in the report carry its name in their gid.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

#: Words for the domains that the demo sends by itself.
DOMAIN_WORDS = {"py": "source code", "prose": "prose"}
CAPTION = "Higher is better. At each numbered mark a newly learnt draft takes over"
TURN_CAPTION = "; new text, from the dotted line on, is harder until drafts have learnt it"
_INK = "#1f2933"
_QUIET = "#5c6773"
_LINES = ("#1d5fa8", "#a65212", "#2a7f62", "#7b3fa0")  # of domains, in the order they were sent
_TINTS = ("#eef4fb", "#fdf3e7", "#edf7f2", "#f5effa")
_OUT = {"refused": ("x", "#b3261e", "draft refused by the gate"), "rolled_back": ("v", "#b36b00", "draft rolled back")}
_PLACE = {"left": 0.065, "right": 0.985, "top": 0.855, "bottom": 0.25}  # room for title and numbers, legend and caption
_ROWS = 3  # numbers of marks that stand close are staggered over so many rows
_ROOM_SHARE = 0.022  # of the axis: what a number takes


def write_picture(report: Mapping[str, Any], path: Path) -> None:
    """Write the picture of a report, as `report.as_json` makes it, to `path` as PNG; replaces a file that is there."""
    demo_figure(report).savefig(path, dpi=110, format="png")


def demo_figure(report: Mapping[str, Any]) -> Any:
    """The picture as a matplotlib Figure; shows every stretch, swap, refusal and rollback of the timeline."""
    line = report["timeline"]
    figure = Figure(figsize=(10.4, 5.6))
    axes = figure.subplots(gridspec_kw=_PLACE)
    domains = draw_timeline(axes, line, axis_end_s(line))
    _label(figure, axes, report["accept_length"], has_turn=len(line["domains"]) > 1)
    draw_legend(axes, line, domains)
    return figure


def draw_timeline(axes: Any, line: Mapping[str, Any], end_s: float) -> list[str]:
    """Draw every stretch, swap, refusal and rollback of `line`, a timeline, from 0 to `end_s`; return its domains."""
    axes.set_xlim(0.0, end_s)
    domains = list(dict.fromkeys(stretch["domain"] for stretch in line["accept_length"]))
    _draw_lengths(axes, line["accept_length"], domains)
    _draw_domains(axes, line["domains"], end_s)
    _draw_swaps(axes, line["swaps"], end_s)
    for kind in _OUT:
        _draw_out(axes, kind, line[kind])
    return domains


def axis_end_s(line: Mapping[str, Any]) -> float:
    """The second at which an axis of `line` ends."""
    told = [entry["at_s"] for key in ("accept_length", "swaps", *_OUT) for entry in line[key]]
    return 1.03 * float(max([*told, 1.0]))


def _draw_lengths(axes: Any, stretches: Sequence[Mapping[str, Any]], domains: Sequence[str]) -> None:
    for index, domain in enumerate(domains):
        mine = [stretch for stretch in stretches if stretch["domain"] == domain]
        colour = _LINES[index % len(_LINES)]
        times = [stretch["at_s"] for stretch in mine]
        lengths = [stretch["accept_length"] for stretch in mine]
        axes.plot(times, lengths, "o-", color=colour, markersize=3.5, linewidth=2.2, gid=f"length {domain}", zorder=4)
        known = [stretch for stretch in mine if stretch["low"] is not None]
        ends = [[stretch[key] for stretch in known] for key in ("at_s", "low", "high")]
        axes.fill_between(*ends, color=colour, alpha=0.16, linewidth=0, gid=f"interval {domain}", zorder=2)
    axes.axhline(1.0, color=_QUIET, linewidth=1.0, linestyle=(0, (5, 3)), zorder=1)


def _draw_domains(axes: Any, turns: Sequence[Mapping[str, Any]], end_s: float) -> None:
    """A tint per domain, and its name over it; nothing where the domains were mixed."""
    ends = [*(turn["from_s"] for turn in turns[1:]), end_s]
    for index, (turn, until_s) in enumerate(zip(turns, ends, strict=True)):
        axes.axvspan(
            turn["from_s"], until_s, color=_TINTS[index % len(_TINTS)], gid=f"domain {turn['domain']}", zorder=0
        )
        if index:
            axes.axvline(turn["from_s"], color=_INK, linewidth=1.4, linestyle=":", gid="turn", zorder=3)
        name = f"traffic: {_word(turn['domain'])}"
        middle = (turn["from_s"] + until_s) / 2.0
        over = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "top", "zorder": 6}
        patch = {
            "facecolor": _TINTS[index % len(_TINTS)],
            "edgecolor": "none",
            "pad": 1.5,
        }  # marks do not cross the name
        axes.text(middle, 0.975, name, color=_INK, bbox=patch, gid="domain name", **over)


def _draw_swaps(axes: Any, swaps: Sequence[Mapping[str, Any]], end_s: float) -> None:
    """A line per swap, its draft's number over the axes; numbers that stand close are staggered."""
    taken = [float("-inf")] * _ROWS  # where the last number of each row stands
    for swap in sorted(swaps, key=lambda each: each["at_s"]):
        at_s = swap["at_s"]
        axes.axvline(at_s, color=_QUIET, linewidth=1.0, gid="swap", zorder=1.5)
        free = (row for row in range(_ROWS) if at_s - taken[row] > _ROOM_SHARE * end_s)
        row = next(free, taken.index(min(taken)))
        taken[row] = at_s
        axes.annotate(
            str(swap["number"]), (at_s, 1.0), (0, 4 + 12 * row), xycoords=axes.get_xaxis_transform(),
            textcoords="offset points", ha="center", fontsize=9, fontweight="bold", color=_INK, gid="swap number",
        )  # fmt: skip


def _draw_out(axes: Any, kind: str, drafts: Sequence[Mapping[str, Any]]) -> None:
    """A mark at the foot for each draft that was put out, with its number."""
    marker, colour, _ = _OUT[kind]
    foot = axes.get_xaxis_transform()
    times = [draft["at_s"] for draft in drafts]
    heights = [0.035] * len(drafts)
    size = {"markersize": 8, "markeredgewidth": 2.2}
    axes.plot(times, heights, marker, color=colour, transform=foot, gid=kind, zorder=5, clip_on=False, **size)
    for draft in drafts:
        axes.annotate(
            str(draft["number"]), (draft["at_s"], 0.035), (8, -3), xycoords=foot, textcoords="offset points",
            ha="left", fontsize=9, fontweight="bold", color=colour, gid=f"{kind} number",
        )  # fmt: skip


def _label(figure: Any, axes: Any, lengths: Mapping[str, float | None], *, has_turn: bool) -> None:
    figure.suptitle(
        f"A draft learns from live traffic: {lengths['first']:.2f} -> "
        f"{lengths['final']:.2f} tokens per step",
        fontsize=13, fontweight="bold", color=_INK, x=0.012, ha="left",
    )  # fmt: skip
    figure.supxlabel(f"{CAPTION}{TURN_CAPTION if has_turn else ''}.", fontsize=10, color=_INK, y=0.025)
    axes.set_xlabel("time since the first request (seconds)")
    axes.set_ylabel("accept length (tokens per step of the target)")
    leave_room(axes)
    trim(axes)


def leave_room(axes: Any, share: float = 0.12) -> None:
    """Make room for the names of domains, and for what was put out: so much of the axis."""
    low, high = axes.get_ylim()
    axes.set_ylim(0.75, max(high + share * (high - low), 1.5))


def trim(axes: Any) -> None:
    """Draw lines to read values by, and no frame."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d5dbe1", linewidth=0.6, zorder=0.5)


def draw_legend(axes: Any, line: Mapping[str, Any], domains: Sequence[str], below: float = 0.12) -> None:
    """So many of their heights `below` the axes, what is drawn of `line`; `domains` as `draw_timeline` returns them."""
    shown: list[tuple[Any, str]] = [
        (Line2D([], [], color=_LINES[index % len(_LINES)], marker="o", markersize=3.5, linewidth=2.2), _word(domain))
        for index, domain in enumerate(domains)
    ]
    shown = [(handle, f"{word}, with 95 % interval") for handle, word in shown]
    if line["swaps"]:
        shown.append((Line2D([], [], color=_QUIET), "draft swapped in (its number above)"))
    marks = [_OUT[kind] for kind in _OUT if line[kind]]
    for marker, colour, word in marks:
        shown.append((Line2D([], [], color=colour, marker=marker, linestyle="", markeredgewidth=2.2), word))
    shown.append((Line2D([], [], color=_QUIET, linestyle=(0, (5, 3))), "1: no drafted token accepted"))
    handles, words = zip(*shown, strict=True)
    axes.legend(handles, words, frameon=False, fontsize=9, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -below))


def _word(domain: str) -> str:
    return DOMAIN_WORDS.get(domain, domain)


def main() -> None:
    """Draw the picture of a report that was written before."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m paceline.demo.picture REPORT.json PICTURE.png")
    write_picture(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
