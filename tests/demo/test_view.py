"""The live view is a function of a plain state."""

import io
from dataclasses import replace

from paceline.buffer.board.version import VersionState
from paceline.dashboards.tables import VersionLine
from paceline.demo.view import LiveView, plain_line, render, sparkline
from paceline.demo.view_state import ViewState
from paceline.rig.reader import TraceAccount
from rich.console import Console

STATE = ViewState(
    phase="prose",
    elapsed_s=60.0,
    requests_done=30,
    requests_total=40,
    curves={"py": [1.0, 1.5, 2.0], "prose": [1.25]},
    live=2,
    versions=[
        VersionLine(
            number=1,
            state=VersionState.REFUSED,
            reason="interval [-0.1, 0.2] holds zero",
            lead="interval [-0.1, 0.2] holds zero",
            judged_accept_length=1.1,
        ),
        VersionLine(
            number=2,
            state=VersionState.LIVE,
            reason="better by 0.4",
            lead="better by 0.4",
            judged_accept_length=1.5,
            served_accept_length=1.4375,
            rounds=800,
        ),
    ],
    traces=TraceAccount(
        captured=100, delivered=97, dropped={"tap_full": 3, "opt_out": 0}, learned=80, held_out=7, rested=2, pending=8
    ),
    swaps=2,
    stall_ms=31.4,
)


def drawn(state: ViewState) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(render(state))
    return console.file.getvalue()


def test_an_answer_is_shown_where_there_is_one_to_read() -> None:
    read = replace(STATE, answer="explain-0001: It [adds] numbers.")
    assert "explain-0001: It [adds] numbers." in drawn(read)
    console = Console(file=io.StringIO(), width=120)
    LiveView(console).show(read)
    assert console.file.getvalue().splitlines() == [plain_line(read), "        explain-0001: It [adds] numbers."]


def test_an_answer_is_printed_once(monkeypatch) -> None:
    monkeypatch.setattr("paceline.demo.view._PLAIN_EVERY_S", 0.0)
    read = replace(STATE, answer="explain-0001: It adds.")
    console = Console(file=io.StringIO(), width=120)
    view = LiveView(console)
    for state in (read, read, replace(read, answer="explain-0002: It ends.")):
        view.show(state)
    answers = [line for line in console.file.getvalue().splitlines() if "explain-" in line]
    assert answers == ["        explain-0001: It adds.", "        explain-0002: It ends."]


def test_the_view_shows_lengths_versions_traces_and_swaps() -> None:
    text = drawn(STATE)
    assert "prose   requests 30/40   live version 2   60 s, about 20 s left" in text
    assert [word for word in ("▁▅█", "2.00", "1.25", "refused", "live", "1.44", "800") if word not in text] == []
    assert "interval [-0.1, 0.2] holds zero" in text
    assert "captured 100, delivered 97, dropped 3 (tap_full 3), learned 80, held out 7, rested 2, pending 8" in text
    assert "swaps: 2, longest wait for a token around the last one 31 ms" in text


def test_what_the_server_has_not_said_is_unknown_and_never_0() -> None:
    text = drawn(ViewState(phase="starting", elapsed_s=1.0))
    assert "captured unknown, delivered unknown, dropped unknown, learned 0" in text
    assert "swaps: unknown" in text
    silent = replace(STATE, traces=replace(STATE.traces, silent_s=12.0))
    assert "captured 100, delivered 97, dropped 3 (tap_full 3) (the server said so 12 s ago)" in plain_line(silent)


def test_the_first_view_shows_no_numbers_that_are_unknown() -> None:
    text = drawn(ViewState(phase="starting", elapsed_s=1.0))
    assert "live version none   1 s\n" in text.replace(" \n", "\n")
    assert "left" not in text


def test_a_plain_line_shows_the_same() -> None:
    assert plain_line(STATE) == (
        "[   60 s] prose: requests 30/40, accept length py 2.00, prose 1.25, live version 2, swaps 2, "
        "captured 100, delivered 97, dropped 3 (tap_full 3), learned 80, held out 7, rested 2, pending 8"
    )


def test_a_sparkline_runs_from_lowest_to_highest_and_keeps_the_latest() -> None:
    assert sparkline([1.0, 1.5, 2.0, 9.0, 0.0], 1.0, 2.0) == "▁▅██▁"
    assert sparkline([1.0], 1.0, 1.0) == "▁"
    assert sparkline([2.0] * 100 + [1.0], 1.0, 2.0) == "█" * 59 + "▁"


def test_without_a_terminal_the_view_is_a_line_every_few_seconds() -> None:
    console = Console(file=io.StringIO(), width=40)
    with LiveView(console) as view:
        for _ in range(5):
            view.show(STATE)
    assert console.file.getvalue() == plain_line(STATE) + "\n"


def test_on_a_terminal_the_view_is_drawn_in_place() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with LiveView(console) as view:
        view.show(STATE)
    assert "draft versions" in console.file.getvalue()
