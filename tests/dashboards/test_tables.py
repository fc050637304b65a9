"""Draft versions as rows and as a table: what the board says, word for word."""

import io

from paceline.buffer.testing.memory_board import MemoryVersionBoard
from paceline.buffer.version import BoardState, DraftVersion, VersionState
from paceline.dashboards.tables import (
    BOARD_COLUMNS,
    RUN_COLUMNS,
    AlarmLine,
    VersionLine,
    alarm_lines,
    alarms_table,
    as_counts,
    as_int,
    version_lines,
    versions_table,
)
from paceline.policies.acceptance import Tally
from rich.console import Console


def board_state() -> BoardState:
    """Version 0 served first, version 1 replaced it, both at 00:00:09 on the first day."""
    board = MemoryVersionBoard(clock=lambda: 9.0)
    for number, scores in enumerate(({}, {"holdout_accept_length": 1.75})):
        parent = number - 1 if number else None
        version = DraftVersion(number, parent, "t", "1", "eagle3", "file:///d", "0" * 64, "committed", ("", ""), scores)
        board.register(version, "learner", "made")
        board.move(number, VersionState.LIVE, "learner", "better by [0.1, 0.4]")
    return board.read()


def drawn(lines: list[VersionLine], columns: tuple[str, ...]) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(versions_table(lines, columns))
    return console.file.getvalue()


def test_lines_hold_what_the_board_and_the_traffic_said() -> None:
    assert version_lines(board_state(), {1: Tally(3, 4), 0: Tally(0, 0)}) == [
        VersionLine(0, VersionState.RETIRED, "replaced by version 1", changed_at=9.0),
        VersionLine(1, VersionState.LIVE, "better by [0.1, 0.4]", 1.75, 1.75, 4, 0, 9.0),
    ]


def test_the_boards_table_shows_parents_and_times_and_the_runs_table_what_was_served() -> None:
    lines = version_lines(board_state(), {1: Tally(3, 4)})
    board, run = drawn(lines, BOARD_COLUMNS), drawn(lines, RUN_COLUMNS)
    assert [row.split()[1::2] for row in board.splitlines() if "│ live" in row] == [
        ["1", "live", "0", "1.75", "1970-01-01", "│", "by", "0.4]"]
    ]
    assert "1970-01-01 00:00:09Z" in board
    assert "1970" not in run
    assert [word for word in ("held-out", "served", "rounds", "1.75", "│      4 │") if word not in run] == []


def test_a_reason_is_text_and_never_markup() -> None:
    said = "refused [bold red]really[/] [0.1, 0.2] [/nothing]"
    assert said in drawn([VersionLine(1, VersionState.REFUSED, said)], RUN_COLUMNS)


def test_readings_that_were_not_made_are_zero_and_empty() -> None:
    assert (as_int({"a": 3}, "a"), as_int({}, "a"), as_int({"a": "3"}, "a")) == (3, 0, 0)
    assert (as_counts({"a": {"x": 1}}, "a"), as_counts({}, "a"), as_counts({"a": 1}, "a")) == ({"x": 1}, {}, {})


def test_alarms_are_listed_by_member_what_stands_first_and_nonsense_is_passed_over():
    raised = {"name": "silent_death", "reading": "accept length 1.0", "action": "roll_back", "version": 4, "at": 9.0}
    stands = {"name": "hook_silent", "reading": "200 rounds verified", "action": "tell"}
    told = {
        "replica:b": {"alarms": [raised, {"name": 3}, "x"], "standing_alarms": [stands]},
        "replica:a": {"alarms": "none", "standing_alarms": [{**stands, "version": "4", "at": "now"}]},
        "learner:x": {},
    }
    lines = alarm_lines(told)
    assert lines == [
        AlarmLine("replica:a", "hook_silent", "200 rounds verified", "tell"),
        AlarmLine("replica:b", "hook_silent", "200 rounds verified", "tell"),
        AlarmLine("replica:b", "silent_death", "accept length 1.0", "roll_back", 4, 9.0),
    ]
    console = Console(file=io.StringIO(), width=160)
    console.print(alarms_table(lines))
    shown = console.file.getvalue()
    assert shown.count("active") == 2
    assert "1970-01-01 00:00:09Z" in shown
