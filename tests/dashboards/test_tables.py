"""Draft versions and alarms as rows and as tables: what Redis holds, in full, and nothing that harms a terminal."""

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from made_versions import made_version
from paceline.buffer.board.member_board import MemberSeen
from paceline.buffer.board.version import BoardState, JudgedOn, VersionState, fold
from paceline.dashboards.alarm_lines import AlarmLine, alarms_table, standing_and_recent
from paceline.dashboards.snapshot import Snapshot
from paceline.dashboards.tables import (
    BOARD_COLUMNS,
    RUN_COLUMNS,
    VersionLine,
    VersionsTable,
    version_lines,
)
from paceline.policies.readings.ratio_sums import RatioSums
from rich.console import Console, RenderableType
from said import said
from twins.memory_board import MemoryVersionBoard


def board_state() -> BoardState:
    """Version 0 served first, version 1 replaced it, both at 00:00:09 on the first day."""
    board = MemoryVersionBoard(clock=lambda: 9.0)
    for number, scores in enumerate(({}, {"judged_accept_length": 1.5, "predicted_accept_length": 1.75})):
        parent = number - 1 if number else None
        version = made_version(number, parent, scores=scores)
        board.register(version, "learner", "made")
        board.move(number, VersionState.LIVE, "learner", "better by [0.1, 0.4]")
    return board.read()


def printed(table: RenderableType, width: int = 160) -> str:
    """The table as a file gets it, where rich itself writes no escape sequence."""
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_lines_hold_what_the_board_and_the_traffic_report() -> None:
    assert version_lines(board_state(), {1: RatioSums.of(4, 3), 0: RatioSums()}) == [
        VersionLine(
            number=0,
            state=VersionState.RETIRED,
            reason="replaced by version 1",
            lead="replaced by version 1",
            changed_at=9.0,
        ),
        VersionLine(
            number=1,
            state=VersionState.LIVE,
            reason="better by [0.1, 0.4]",
            lead="better by [0.1, 0.4]",
            judged_accept_length=1.5,
            served_accept_length=1.75,
            rounds=4,
            parent=0,
            changed_at=9.0,
            requests=1,
            predicted_accept_length=1.75,
        ),
    ]


def test_the_boards_table_shows_parents_and_times_and_the_runs_table_what_was_served() -> None:
    lines = version_lines(board_state(), {1: RatioSums.of(4, 3)})
    board, run = (printed(VersionsTable(lines, columns)) for columns in (BOARD_COLUMNS, RUN_COLUMNS))
    assert [row.split()[1::2] for row in board.splitlines() if "│ live" in row] == [
        ["1", "live", "0", "1.75", "-", "1", "1.75", "+0.00", "1970-01-01", "│", "by", "0.4]"]
    ]
    assert "1970-01-01 00:00:09Z" in board
    assert "1970" not in run
    assert [text for text in ("predicted", "served", "rounds", "1.75", "│      4 │") if text not in run] == []


@pytest.mark.parametrize("columns", [BOARD_COLUMNS, RUN_COLUMNS])
def test_where_a_table_is_too_wide_nothing_of_it_is_cut(columns: Sequence[str]) -> None:
    reason = "the line is taken for better after 3 rounds; " * 3 + "the end"
    lines = [
        VersionLine(
            number=7,
            state=VersionState.LIVE,
            reason=reason,
            lead=reason.partition(";")[0],
            served_accept_length=1.75,
            requests=4,
            rounds=90,
        )
    ]
    narrowest = next(width for width in range(40, 200) if "│" in printed(VersionsTable(lines, columns), width))
    for width in range(narrowest - 5, narrowest + 2):
        shown = printed(VersionsTable(lines, columns), width)
        # Words of a table's cells stand between borders; a paragraph has none.
        words = " ".join(shown.replace("│", " ").replace("┃", " ").split())
        assert max(map(len, shown.splitlines())) <= width
        assert ("version 7, state live, " in words) == (width < narrowest)
        assert [word for word in ("served", "1.75", *columns[:2]) if word not in words] == []
        assert ("3 rounds;" in words, "3 rounds" in words) == (False, True)
        if width >= narrowest:  # a column that was dropped is named
            assert [name for name in columns if name not in words] == []


def test_it_is_a_table_at_a_hundred_columns_with_the_lead_of_each_reason() -> None:
    served = {"served_accept_length": 1.75, "requests": 4, "served_interval": (1.5, 2.0)}
    line = VersionLine(
        number=7,
        state=VersionState.LIVE,
        reason="proven, 393 to 1; 10 to 1 are enough",
        lead="proven, 393 to 1",
        **served,
    )
    shown = printed(VersionsTable([line]), 100).splitlines()
    (row,) = [each for each in shown if "│" in each]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "7",
        "live",
        "1.75",
        "1.50 .. 2.00",
        "4",
        "-",
        "proven, 393 to 1",
    ]
    assert shown[-1].startswith("too narrow for parent, changed, error: `paceline versions show N`")


def test_the_error_of_a_prediction_has_the_noise_of_both_samples() -> None:
    rounds, accepted = range(10, 20), (9, 14, 8, 17, 12, 20, 11, 15, 21, 13)
    sums = sum((RatioSums.of(*each) for each in zip(rounds, accepted, strict=True)), RatioSums())
    judged = made_version(2, 1)
    lines = []
    predicted = {"predicted_accept_length": 1.5, "predicted_standard_error": 0.3}
    for scores in (predicted, {"judged_accept_length": 1.5}, {}):
        board = MemoryVersionBoard(clock=lambda: 9.0)
        board.register(replace(judged, scores=scores), "learner", "made")
        lines += version_lines(board.read(), {2: sums})
    ratio = sum(accepted) / sum(rounds)
    squares = sum((a - ratio * r) ** 2 for a, r in zip(accepted, rounds, strict=True))
    served_error = (squares * 10 / 9) ** 0.5 / sum(rounds)
    half = 1.959964 * (0.3**2 + served_error**2) ** 0.5
    assert [line.error_half_width for line in lines] == [pytest.approx(half), None, None]
    assert f"{ratio - 0.5:+.2f} ± {half:.2f}" in printed(VersionsTable(lines[:1]))
    assert "±" not in printed(VersionsTable(lines[1:]))
    few = version_lines(board_state(), {1: RatioSums.of(4, 3)})[1]
    assert (few.prediction_error, few.error_half_width) == (0.0, None)


def test_every_version_says_once_what_it_was_judged_on_whatever_became_of_it() -> None:
    judged_on = JudgedOn(labels={"code": 12}, newest_labels={"code": 3, "": 1}, median_age_s=40.0, oldest_age_s=90.0)
    board = MemoryVersionBoard(clock=lambda: 9.0)
    for number in range(2):
        version = made_version(number)
        board.register(replace(version, judged_on=judged_on), "learner", "made")
        board.move(number, VersionState.LIVE, "learner", "better")
    said = (
        "judged on 12 requests, median age 40 s, oldest 90 s, labels and in brackets those of the newest traffic: "
        "code 100% (75%), unknown 0% (25%)"
    )
    reasons = [line.reason for line in version_lines(board.read())]
    assert reasons == [f"replaced by version 1; {said}", f"better; {said}"]


def test_a_version_says_which_targets_it_was_trained_and_judged_on() -> None:
    judged_on = JudgedOn(
        labels={"": 12}, newest_labels={"": 14}, median_age_s=40.0, oldest_age_s=90.0, targets={"6": 2, "7": 10}
    )
    version = made_version(1, 0, target_version="7")
    board = MemoryVersionBoard(clock=lambda: 9.0)
    for number, targets in enumerate(((), ("5", "6", "7"))):
        board.register(replace(version, number=number, judged_on=judged_on, trained_targets=targets), "learner", "made")
    without, with_targets = (line.reason for line in version_lines(board.read()))
    assert without.endswith("target versions and in brackets their requests: 6 (2), 7 (10)")
    assert with_targets == f"{without}; trained on target 5, 6, 7"


def test_a_reason_is_text_and_never_markup() -> None:
    why = "refused [bold red]really[/] [0.1, 0.2] [/nothing]"
    assert why in printed(
        VersionsTable([VersionLine(number=1, state=VersionState.REFUSED, reason=why, lead=why)], RUN_COLUMNS)
    )


@pytest.mark.parametrize("harmful", ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\x08", "\u202e", "\ud800"])
def test_no_text_out_of_redis_steers_the_terminal(harmful: str) -> None:
    texts = [f"{place}{harmful}" for place in ("why", "member", "name", "detail", "action")]
    why, member, name, detail, action = texts
    board = MemoryVersionBoard()
    board.register(
        made_version(0),
        "learner",
        "made",
    )
    row = board.read().rows[0]
    state = replace(board.read(), rows={0: replace(row, why=why)})
    alarm = {"name": name, "figures": {"said": detail}, "action": action}
    reports = MemberSeen(
        said=said({"standing_alarms": [alarm], "alarms": [{**alarm, "at": 9.0}]}), last_seen_at=10.0, is_alive=True
    )
    alarms = standing_and_recent(Snapshot(speculator="default", at=10.0, state=fold([]), members={member: reports}))
    shown = printed(VersionsTable(version_lines(state))) + printed(alarms_table(alarms))
    assert all(line.isprintable() for line in shown.splitlines())
    assert [text for text in texts if text.replace(harmful[0], "\N{REPLACEMENT CHARACTER}")[:12] not in shown] == []


@pytest.mark.parametrize("at", [1e300, -1e300, 1e12])
def test_an_absurd_time_hides_no_other_row(at: float) -> None:
    lines = [
        VersionLine(number=0, state=VersionState.LIVE, reason="first", lead="first", changed_at=at),
        VersionLine(number=1, state=VersionState.CANARY, reason="second", lead="second"),
    ]
    assert f"{at:g} s" in printed(VersionsTable(lines))
    assert "second" in printed(VersionsTable(lines))
    assert f"{at:g} s" in printed(
        alarms_table([AlarmLine(member="replica:a", name="name", figures={}, action="tell", at=at)])
    )


def test_alarms_are_listed_by_member_active_ones_first() -> None:
    raised = {"name": "silent_death", "figures": {"length": 1.0}, "action": "roll_back", "version": 4, "at": 9.0}
    active = {"name": "hook_silent", "figures": {"rounds": 200}, "action": "tell"}
    statuses = {
        "replica:b": {"alarms": [raised], "standing_alarms": [active]},
        "replica:a": {"standing_alarms": [active]},
        "learner:x": {},
    }
    members = {
        name: MemberSeen(said=said(status), last_seen_at=10.0, is_alive=True) for name, status in statuses.items()
    }
    lines = standing_and_recent(Snapshot(speculator="default", at=10.0, state=fold([]), members=members))
    assert lines == [
        AlarmLine(member="replica:a", name="hook_silent", figures={"rounds": 200}, action="tell"),
        AlarmLine(member="replica:b", name="hook_silent", figures={"rounds": 200}, action="tell"),
        AlarmLine(
            member="replica:b", name="silent_death", figures={"length": 1.0}, action="roll_back", version=4, at=9.0
        ),
    ]
    shown = printed(alarms_table(lines))
    assert shown.count("active") == 2
    assert "1970-01-01 00:00:09Z" in shown
