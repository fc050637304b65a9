"""The panels of the live page against a story whose every figure is known, and against a board that tells nothing."""

import math
from itertools import pairwise

import msgspec
import pytest
from paceline.buffer.board.counters import Counters, ServedCell, ServedCounters
from paceline.buffer.board.version import VersionState
from paceline.dashboards.window.accept_panel import SPANS, label_lines
from paceline.dashboards.window.lives import Lives
from paceline.dashboards.window.look import BoardReader, Look
from paceline.dashboards.window.panels import PANELS, Asked, one_panel, snapshot
from paceline.policies.readings.accept_series import AcceptStretch, accept_series, length_of
from paceline.policies.readings.tables import CellSums
from twins.memory_board import MemoryVersionBoard
from window_story import LEARNER, REPLICA, START, Story, code_then_prose


@pytest.fixture(scope="module")
def story() -> Story:
    return code_then_prose()


@pytest.fixture(scope="module")
def look(story) -> Look:
    return BoardReader(speculator="demo", board=story.board).look()


@pytest.fixture(scope="module")
def panels(look):
    """As a browser gets them: through JSON."""
    return msgspec.json.decode(msgspec.json.encode(snapshot(look, Asked())))


def series(panel, name):
    """Time -> value of one column."""
    return dict(zip(panel["times"], panel[name], strict=True))


def test_every_panel_is_there_and_alone_is_what_it_is_among_all(look, panels):
    assert tuple(panels) == PANELS
    assert len(PANELS) == 8
    for name in PANELS:
        assert msgspec.json.decode(msgspec.json.encode(one_panel(name, look, Asked()))) == panels[name]


def test_the_line_has_what_was_served(panels):
    accept = panels["accept"]
    pooled = series(accept, "pooled")
    minute_of = lambda seconds: min(t for t in pooled if t >= START + seconds)  # noqa: E731 - beside the figures below
    assert pooled[minute_of(380)] == pytest.approx(1 + 1.6, abs=0.06)  # draft 3 on code
    assert pooled[minute_of(540)] == pytest.approx(1 + 0.45, abs=0.06)  # draft 3 on prose
    assert pooled[minute_of(680)] == pytest.approx(1 + 1.3, abs=0.06)  # draft 6 on prose
    assert all(value is None for t, value in pooled.items() if t <= START)


def test_the_speculator_was_born_with_its_first_draft_and_an_empty_board_never(panels, story):
    assert panels["accept"]["born"] == min(event.at for event in story.board.events())
    empty = BoardReader(speculator="demo", board=MemoryVersionBoard()).look()
    assert one_panel("accept", empty, Asked())["born"] is None


def test_an_interval_stands_where_eight_requests_ended_and_contains_the_line(panels):
    accept = panels["accept"]
    rows = zip(accept["requests"], accept["low"], accept["pooled"], accept["high"], strict=True)
    known = [(low, pooled, high) for requests, low, pooled, high in rows if requests >= 8]
    assert len(known) > 20
    assert all(low <= pooled <= high for low, pooled, high in known)
    assert [
        row for row in zip(accept["requests"], accept["low"], strict=True) if row[0] < 8 and row[1] is not None
    ] == []


def test_swaps_refusals_and_predictions_stand_where_the_board_has_them(panels):
    accept = panels["accept"]
    assert [(mark["kind"], mark["number"]) for mark in accept["marks"]] == [
        ("swap", 0), ("swap", 1), ("swap", 2), ("swap", 3), ("refused", 4), ("refused", 5), ("swap", 6),
    ]  # fmt: skip
    assert accept["marks"][4]["lead"] == "refused: not proven, 1.4 to 1 of 10"
    predicted = series(accept, "predicted")
    assert [predicted[t] for t in sorted(predicted) if t > START + 640][:1] == [2.3]
    assert {value for t, value in predicted.items() if t <= START + 60} == {None}


def test_traffic_is_shaded_from_the_turn_to_prose_until_a_draft_that_was_judged_on_prose(story, panels):
    ((began, ended),) = panels["accept"]["moved"]
    turned = next(mark["at"] for mark in panels["accept"]["marks"] if mark["number"] == 4) - 40
    cured = next(mark["at"] for mark in panels["accept"]["marks"] if mark["number"] == 6)
    assert turned - 15 <= began <= turned + 45
    assert cured - 15 <= ended <= cured + 15


def test_drift_is_shaded_from_the_tests_firing_until_the_next_draft_went_live(panels):
    accept = panels["accept"]
    fired = next(mark["at"] for mark in accept["marks"] if mark["number"] == 4)  # draft 4 was refused just then
    cured = next(mark["at"] for mark in accept["marks"] if mark["number"] == 6)
    assert accept["drifted"] == [[fired, cured]]
    assert accept["drifted"] != accept["moved"]
    assert "Drift tests that fired: 1." in accept["summary"]


def test_a_drift_ends_where_the_learner_rests_again_and_is_cut_to_what_is_shown():
    story = Story()
    story.run(20, {})
    story.drift()
    fired = story.now
    story.run(40, {})
    story.learner.rests += 1
    rested = story.now
    story.run(400, {})
    accept = one_panel("accept", BoardReader(speculator="demo", board=story.board).look(), Asked())
    assert accept["drifted"] == [(fired, rested)]
    assert (
        one_panel("accept", BoardReader(speculator="demo", board=story.board).look(), Asked(span_s=300))["drifted"]
        == []
    )
    story.drift()
    story.run(10, {})
    look = BoardReader(speculator="demo", board=story.board).look()
    assert one_panel("accept", look, Asked())["drifted"][1] == (story.now - 10, look.seen.at)


def test_the_lane_has_every_draft_newest_first_with_what_became_of_it(panels):
    drafts = panels["lane"]["drafts"]
    assert [(draft["number"], draft["state"]) for draft in drafts] == [
        (6, "live"), (5, "refused"), (4, "refused"), (3, "retired"), (2, "retired"), (1, "retired"), (0, "retired"),
    ]  # fmt: skip
    assert [bar["state"] for bar in drafts[0]["bars"]] == ["candidate", "canary", "live"]
    assert drafts[0]["bars"][-1]["to"] is None
    live = sorted((bar["from"], bar["to"] or math.inf) for d in drafts for bar in d["bars"] if bar["state"] == "live")
    assert all(before[1] == after[0] for before, after in pairwise(live))


def test_positions_are_conditional_shares_of_the_live_draft_beside_the_one_before(story, panels):
    positions = panels["positions"]
    assert (positions["draft"], positions["before"]) == (6, 3)
    tried, stood = story.positions[6][0]
    assert positions["rows"][0] | {"rate_before": None} == {
        "position": 1, "tried": tried, "stood": stood, "rate": stood / tried, "rate_before": None,
    }  # fmt: skip
    assert positions["rows"][1]["tried"] == stood
    assert [row["label"] for row in positions["labels"]] == ["prose"]
    rounds, late_rounds, accepted, late_accepted = story.starts[6]
    assert positions["starts"] == [
        {"start": "output 0-255", "accept_length": 1 + accepted / rounds, "rounds": rounds},
        {"start": "output 256-511", "accept_length": 1 + late_accepted / late_rounds, "rounds": late_rounds},
    ]


def test_a_refused_draft_shows_that_its_judges_were_not_todays_traffic(look):
    draft = one_panel("draft", look, Asked(draft=4))
    assert (draft["state"], draft["may_promote"], draft["may_roll_back"]) == ("refused", True, False)
    shares = {row["label"]: row for row in draft["labels"]}
    assert shares["prose"]["judged"] == pytest.approx(4 / 31)
    assert (shares["prose"]["then"], shares["prose"]["now"]) == (1.0, 1.0)
    assert [event["state"] for event in draft["history"]] == ["candidate", "refused"]


def test_only_what_the_board_would_take_is_offered(look):
    offers = {n: one_panel("draft", look, Asked(draft=n)) for n in (3, 6)}
    assert (offers[6]["may_promote"], offers[6]["may_roll_back"]) == (False, True)
    assert (offers[3]["may_promote"], offers[3]["may_roll_back"]) == (True, False)
    assert "draft 3 comes back" in offers[6]["act_text"]


def test_a_draft_that_is_not_there_is_said_in_words(look):
    assert one_panel("draft", look, Asked(draft=99))["why_unknown"] == "draft 99 is not on the board"


def test_an_empty_board_is_unknown_in_words_and_never_nought():
    look = BoardReader(speculator="demo", board=MemoryVersionBoard(clock=lambda: START)).look()
    panels = snapshot(look, Asked())
    assert {finding["level"] for finding in panels["headline"]["findings"]} == {"unknown"}
    assert set(panels["accept"]["pooled"]) == {None}
    assert {
        name: bool(panels[name].get("why_unknown")) for name in ("accept", "positions", "why", "draft", "loop")
    } == dict.fromkeys(("accept", "positions", "why", "draft", "loop"), True)


def test_members_that_fall_silent_stand_as_alarms_and_nothing_is_well(story):
    board = story.board
    was = story.now
    story.now += 120.0
    try:
        panels = snapshot(BoardReader(speculator="demo", board=board).look(), Asked())
    finally:
        story.now = was
    assert {row["member"]: row["presence"] for row in panels["members"]["members"]} == {
        REPLICA: "silent",
        LEARNER: "silent",
    }
    assert panels["why"]["why_unknown"] == "no server is alive, the last was seen 2 min ago"
    assert panels["loop"]["facts"][1:] == [(LEARNER, "silent, last seen 2 min ago")]
    assert {row["doing"] for row in panels["members"]["members"] if row["member"] == REPLICA} == {"at last: capture on"}
    assert {(alarm["member"], alarm["alarm"]) for alarm in panels["members"]["alarms"]} >= {(REPLICA, "member_silent")}
    assert "ok" not in {finding["level"] for finding in panels["headline"]["findings"]}


@pytest.mark.parametrize("span", SPANS)
def test_every_span_has_columns_of_one_length_and_ends_now(look, span):
    accept = one_panel("accept", look, Asked(span_s=span))
    lengths = {
        len(accept[name]) for name in ("times", "pooled", "low", "high", "rounds", "requests", "draft", "predicted")
    }
    assert lengths == {round(span / SPANS[span])}
    assert 0 <= accept["until"] - look.seen.at < SPANS[span]


def test_a_span_that_nobody_offers_is_refused():
    with pytest.raises(ValueError, match="span: got 17 s, expected one of"):
        Asked(span_s=17)


def test_a_reader_reads_on_where_it_was_and_from_the_beginning_when_the_board_lost_its_events():
    story = Story()
    story.publish(0, None)
    story.go_live(0, "first")
    reader = BoardReader(speculator="demo", board=story.board)
    assert [event.number for event in reader.look().events] == [0, 0]
    story.publish(1, 0)
    assert [event.number for event in reader.look().events] == [0, 0, 1]
    lost = Story()
    lost.now += 5.0
    lost.publish(0, None)
    reader.board = lost.board
    assert [(event.number, event.at) for event in reader.look().events] == [(0, START + 5.0)]
    assert list(reader.look().lives.stays) == [0]


def test_what_a_reader_keeps_of_histories_is_what_the_board_would_tell_anew(story):
    reader = BoardReader(speculator="demo", board=story.board)
    first = reader.look().seen.histories[REPLICA]
    assert reader.look().seen.histories[REPLICA] == first == list(story.board.history(REPLICA))


def entry(at: float, rounds: int, accepted: int, *, boot: str = "a", draft: int = 1) -> Counters:
    cell = ServedCell(draft=draft, label="", kind="greedy", rounds=rounds, accepted=accepted)
    return Counters(at=at, boot=boot, draft=draft, served=ServedCounters(cells=[cell]))


def test_stretches_have_differences_of_one_boot_and_a_restart_begins_at_nothing():
    history = [
        entry(0, 10, 10),
        entry(5, 30, 50),
        entry(15, 50, 60),
        entry(25, 8, 4, boot="b"),
        entry(55, 28, 24, boot="b"),
    ]
    found = accept_series([history, []], 60.0, 10.0, 6)
    assert [(stretch.sums.rounds, stretch.sums.accepted) for stretch in found] == [
        (20, 40), (20, 10), (8, 4), (20, 20), (20, 20), (20, 20),
    ]  # fmt: skip
    assert [length_of(stretch.sums) for stretch in found][:3] == [3.0, 1.5, 1.5]
    assert [stretch.at for stretch in found] == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


def test_stretches_without_any_entry_are_unknown():
    assert [length_of(stretch.sums) for stretch in accept_series([[entry(0, 1, 1)]], 100.0, 10.0, 3)] == [None] * 3


def test_a_rollback_is_a_return_on_the_chart_and_ends_the_bar():
    story = Story()
    for number in range(2):
        story.publish(number, None)
        story.go_live(number, "better")
        story.now += 10.0
    story.board.roll_back("operator:ann", "worse on prose")
    lives = Lives()
    lives.add(story.board.events())
    assert [(stay.state, stay.since, stay.to) for stay in lives.stays[1]] == [
        (VersionState.CANDIDATE, START + 10, START + 10),
        (VersionState.LIVE, START + 10, START + 20),
        (VersionState.ROLLED_BACK, START + 20, None),
    ]
    assert (lives.live_at(START + 15), lives.live_at(START + 20), lives.live_at(START - 1)) == (1, 0, None)
    marks = one_panel("accept", BoardReader(speculator="demo", board=story.board).look(), Asked())["marks"]
    assert [(mark["kind"], mark["number"]) for mark in marks] == [("swap", 0), ("swap", 1), ("returned", 0)]


def test_what_the_page_draws_of_an_explanation_is_there(panels):
    why = panels["why"]
    drawn = {"log", "log_low", "log_high", "is_noise"}
    assert drawn <= why["request_tokens_per_second"].keys()
    assert why["answer"]
    assert why["causes"]
    of_cause = drawn | {"cause", "share", "evidence", "what_would_change_it"}
    assert all(of_cause <= cause.keys() for cause in why["causes"])


def test_a_label_has_a_line_where_it_has_rounds_enough_to_speak_for_more_than_one_request(panels):
    accept = panels["accept"]
    assert accept["labels"]
    for line in accept["labels"]:
        assert len(line["values"]) == len(accept["times"])
    cells = lambda rounds: {"py": CellSums(rounds, rounds, *[0] * 6), "": CellSums(500, 500, *[0] * 6)}  # noqa: E731 - one use
    (_, py) = label_lines([AcceptStretch(10.0 * rounds, cells(rounds)) for rounds in (49, 50)])
    assert (py["label"], py["values"]) == ("py", [None, 2.0])
