"""The closing picture shows what the report says: every stretch, swap, refusal and rollback, at its place."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from paceline.demo.picture import CAPTION, demo_figure, write_picture


def stretch(domain: str, at_s: float, length: float, spread: float | None = 0.1) -> dict[str, object]:
    ends = (None, None) if spread is None else (length - spread, length + spread)
    return {"domain": domain, "at_s": at_s, "accept_length": length, "low": ends[0], "high": ends[1], "requests": 12}


REPORT = {
    "accept_length": {"first": 1.0, "before_shift": 2.1, "after_shift": 1.5, "final": 2.6},
    "timeline": {
        "domains": [{"domain": "py", "from_s": 0.0}, {"domain": "prose", "from_s": 100.0}],
        "accept_length": [
            stretch("py", 10.0, 1.0),
            stretch("py", 60.0, 2.1),
            stretch("prose", 110.0, 1.5, None),
            stretch("prose", 190.0, 2.6),
        ],
        "swaps": [{"number": n, "at_s": at} for n, at in ((1, 40.0), (2, 41.0), (3, 42.0), (4, 43.0), (7, 150.0))],
        "refused": [{"number": 5, "at_s": 112.0, "reason": "no gain"}, {"number": 6, "at_s": 230.0, "reason": "no"}],
        "rolled_back": [{"number": 3, "at_s": 120.0, "reason": "worse"}],
    },
}


@pytest.fixture
def axes():
    (found,) = demo_figure(REPORT).axes
    return found


def lines(axes, gid: str) -> list[Line2D]:
    return [line for line in axes.lines if line.get_gid() == gid]


def numbers(axes, gid: str) -> dict[str, float]:
    """Written number -> time at which it stands."""
    return {
        text.get_text(): text.xy[0] for text in axes.texts if isinstance(text, Annotation) and text.get_gid() == gid
    }


@pytest.mark.parametrize("domain", ["py", "prose"])
def test_the_lines_are_the_accept_lengths_of_the_report(axes, domain: str) -> None:
    (line,) = lines(axes, f"length {domain}")
    told = [each for each in REPORT["timeline"]["accept_length"] if each["domain"] == domain]
    assert line.get_xydata().tolist() == [[each["at_s"], each["accept_length"]] for each in told]


def test_an_interval_that_is_not_known_is_not_drawn(axes) -> None:
    (band,) = [each for each in axes.collections if each.get_gid() == "interval prose"]
    corners = {(x, round(y, 6)) for path in band.get_paths() for x, y in path.vertices}
    assert corners == {(190.0, 2.5), (190.0, 2.7)}


def test_every_swap_has_a_line_with_its_number(axes) -> None:
    told = {str(each["number"]): each["at_s"] for each in REPORT["timeline"]["swaps"]}
    assert [line.get_xdata()[0] for line in lines(axes, "swap")] == list(told.values())
    assert numbers(axes, "swap number") == told


def test_numbers_that_stand_close_are_staggered_and_those_apart_are_not(axes) -> None:
    heights = {text.get_text(): text.xyann[1] for text in axes.texts if text.get_gid() == "swap number"}
    assert len({heights["1"], heights["2"], heights["3"]}) == 3
    assert heights["1"] == heights["7"]


@pytest.mark.parametrize("kind", ["refused", "rolled_back"])
def test_every_draft_that_was_put_out_has_a_mark_with_its_number(axes, kind: str) -> None:
    told = {str(each["number"]): each["at_s"] for each in REPORT["timeline"][kind]}
    (marks,) = lines(axes, kind)
    assert list(marks.get_xdata()) == list(told.values())
    assert numbers(axes, f"{kind} number") == told


def test_all_that_is_told_lies_within_the_axes(axes) -> None:
    low, high = axes.get_xlim()
    told = [
        each["at_s"] for key in ("accept_length", "swaps", "refused", "rolled_back") for each in REPORT["timeline"][key]
    ]
    assert low <= min(told) < max(told) < high


def test_the_turn_of_the_traffic_is_marked_and_both_domains_are_named(axes) -> None:
    assert [line.get_xdata()[0] for line in lines(axes, "turn")] == [100.0]
    named = {text.get_text(): text.get_position()[0] for text in axes.texts if text.get_gid() == "domain name"}
    assert named == {"traffic: source code": 50.0, "traffic: prose": pytest.approx((100.0 + axes.get_xlim()[1]) / 2)}


def test_a_run_of_one_domain_in_which_nothing_was_put_out_claims_neither() -> None:
    line = {
        "domains": [{"domain": "mine", "from_s": 0.0}],
        "accept_length": [stretch("mine", 10.0, 1.0, None)],
        "swaps": [],
        "refused": [],
        "rolled_back": [],
    }
    figure = demo_figure({"accept_length": REPORT["accept_length"], "timeline": line})
    assert figure.get_supxlabel() == f"{CAPTION}."
    words = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert words == ["mine, with 95 % interval", "1: no drafted token accepted"]


def test_the_picture_is_written_and_drawn_again_from_the_report(tmp_path: Path) -> None:
    write_picture(REPORT, tmp_path / "one.png")
    (tmp_path / "report.json").write_text(json.dumps(REPORT), encoding="utf-8")
    again = [sys.executable, "-m", "paceline.demo.picture", tmp_path / "report.json", tmp_path / "two.png"]
    assert subprocess.run(again, check=False).returncode == 0
    one, two = ((tmp_path / name).read_bytes() for name in ("one.png", "two.png"))
    assert one.startswith(b"\x89PNG")
    assert one == two
