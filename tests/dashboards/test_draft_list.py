"""Drafts as rows, as a card and side by side: what they served beside what was predicted."""

import io

import numpy as np
import pytest
from fleet import NOW, board, counted, replica, requests, snapshot, version
from paceline.buffer.board.reason import ReasonCode, because
from paceline.buffer.board.version import VersionState
from paceline.buffer.errors import ConfigError
from paceline.dashboards.comparison import Comparison, difference
from paceline.dashboards.draft_list import draft_card, draft_list
from paceline.policies.judged_on import sentence
from paceline.policies.readings.ratio_sums import RatioSums
from paceline.policies.verdict_words import sentence as words
from rich.console import Console
from twins.memory_board import MemoryVersionBoard

ONE = [(10, 5), (12, 4), (9, 9), (8, 2), (10, 6), (11, 7), (10, 5), (9, 3), (10, 4)]
OTHER = [(10, 12), (12, 14), (9, 9), (8, 12), (10, 16), (11, 7), (10, 15), (9, 13), (10, 14)]
HISTORIES = {
    "replica:a": [counted(NOW, requests(0, "py", ONE), requests(1, "py", OTHER[:3]), requests(1, "", OTHER[3:]))]
}


def printed(view):
    console = Console(file=io.StringIO(), width=200)
    console.print(view)
    return console.file.getvalue()


def seen(count=2, **members):
    return snapshot(board(count), HISTORIES, **(members or {"replica_a": replica()}))


def events():
    made = MemoryVersionBoard(clock=lambda: 9.0)
    made.register(version(0), "learner", "trained")
    made.move(0, VersionState.REFUSED, "learner", "odds too low")
    made.register(version(1), "learner", "trained too")
    made.move(1, VersionState.LIVE, "operator:me", "looks good")
    return made.events()


def test_only_the_newest_are_shown_and_how_many_are_not():
    found = draft_list(seen(5), 2)
    assert [line.number for line in found.lines] == [3, 4]
    assert "and 3 older: --newest 5 shows all" in printed(found.view())
    assert "older" not in printed(draft_list(seen(5), 5).view())


def test_a_live_version_without_a_server_is_not_shown_as_well():
    green = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    for members, is_green in (({"replica_a": replica()}, True), ({"replica_a": replica(99.0, is_alive=False)}, False)):
        green.file.truncate(0)
        green.print(draft_list(seen(**members), 20).view())
        assert ("\x1b[1;32m" in green.file.getvalue()) == is_green
        assert ("no server is alive" in green.file.getvalue()) == (not is_green)


def test_what_was_predicted_is_dim():
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    console.print(draft_list(seen(3, replica_a=replica(99.0, is_alive=False)), 20).view())
    (row,) = [line for line in console.file.getvalue().splitlines() if "live" in line and "4.00" in line]
    assert "\x1b[2m4.00\x1b[0m" in row.replace(" ", "")


def test_the_card_says_where_a_draft_comes_from_what_it_served_and_who_did_what():
    card = draft_card(seen(), events(), 1)
    shown = printed(card.view())
    for text in (
        "1970-01-01 02:13:20Z .. 1970-01-01 02:29:46Z",
        "judged on 40 requests, median age 30 s",
        "3.00 (95 % over requests 2.80 .. 3.20)",
        "2.26 (95 % over requests",
        "no label",
        "operator:me",
        "looks good",
    ):
        assert text in shown
    assert "odds too low" not in shown
    for scores in ({"judged_accept_length": 2.5}, {"predicted_accept_length": 2.5}):
        bare = draft_card(snapshot(board(2, scores=scores), HISTORIES, replica_a=replica()), [], 1)
        assert bare.facts()["predicted (no quality)"] == "unknown: it was not to serve, or too few requests waited"
    assert card.as_json()["served"]["py"]["requests"] == 3
    assert [event["state"] for event in card.as_json()["history"]] == ["candidate", "live"]


@pytest.mark.parametrize(
    ("labels", "moved"),
    [
        ({"py": 30, "prose": 9}, ""),
        ({"py": 21, "prose": 9}, "; traffic moved: py 100% when it was judged, 70% of what it served"),
        ({"": 90}, "; traffic moved: no label 0% when it was judged, 100% of what it served"),
        ({"prose": 29}, ""),  # too few to tell
    ],
)
def test_beside_the_error_stands_whether_the_draft_served_other_traffic_than_it_was_judged_on(labels, moved):
    cells = [requests(1, label, [(10, 5)] * count) for label, count in labels.items()]
    card = draft_card(snapshot(board(2), {"replica:a": [counted(NOW, *cells)]}, replica_a=replica()), [], 1)
    assert card.facts()["error of prediction"].partition(";")[::2] == ("-1.50 ± 0.20", moved[1:])
    unjudged = draft_card(
        snapshot(board(2, judged_on=None), {"replica:a": [counted(NOW, *cells)]}, replica_a=replica()), [], 1
    )
    assert ";" not in unjudged.facts()["error of prediction"]


def test_a_verdict_leads_in_a_few_words_its_figures_stand_in_columns_and_its_sentence_once():
    on = sentence(version(1).judged_on)
    why = because(ReasonCode.PROVEN, odds=393, needed=10, requests=40)
    made = MemoryVersionBoard(clock=lambda: 9.0)
    scores = {"judged_accept_length": 2.412, "reference_accept_length": 1.874, "gain": 0.538}
    made.register(version(1, scores=scores | {"gain_low": 0.211, "gain_high": 0.842}), "learner", why)
    made.move(1, VersionState.LIVE, "learner", why)
    card = draft_card(snapshot(made.read(), HISTORIES, replica_a=replica()), made.events(), 1)
    assert card.facts()["state"] == "live since 1970-01-01 00:00:09Z: promoted: proven, 393 to 1"
    assert card.facts()["judged (no quality)"] == "2.41 against 1.87 of the reference"
    assert [*card.gate().values()] == ["2.41", "1.87", "+0.54", "0.21 .. 0.84", "40", "30 s", "80 s"]
    shown = " ".join(printed(card.view()).split())
    assert (shown.count("10 to 1 are enough"), shown.count(words(why)), shown.count(on)) == (1, 1, 1)


def test_a_draft_that_served_nothing_says_so():
    assert "unknown: no request that it served is counted" in printed(draft_card(seen(3), [], 2).view())
    with pytest.raises(ConfigError, match="draft 9: got a number that is not on the board, expected one of"):
        draft_card(seen(), [], 9)


def test_two_drafts_side_by_side_say_what_differs():
    cards = [draft_card(seen(), events(), number) for number in (0, 1)]
    found = Comparison(*cards)
    lines = printed(found.view()).splitlines()
    differs = {line.split("│")[1].strip() for line in lines if "differs" in line}
    assert differs == {
        "state",
        "parent",
        "judged (no quality)",
        "predicted (no quality)",
        "served",
        "error of prediction",
    }
    gap = found.as_json()["difference"]
    assert lines[-1].startswith(f"served, draft 1 against draft 0: {gap['value']:+.2f} ({gap['low']:+.2f} .. ")
    assert ", more; they served other requests" in printed(found.view())


def test_the_interval_of_a_difference_is_that_of_drawing_both_sets_of_requests_anew():
    sums = [sum((RatioSums.of(*pair) for pair in pairs), RatioSums()) for pairs in (ONE * 8, OTHER * 8)]
    found, rng, gaps = difference(*sums), np.random.default_rng(0), []
    for _ in range(4000):
        lengths = []
        for pairs in (ONE * 8, OTHER * 8):
            drawn = np.array(pairs)[rng.integers(0, len(pairs), len(pairs))].sum(axis=0)
            lengths.append(drawn[1] / drawn[0])
        gaps.append(lengths[1] - lengths[0])
    assert (found.low, found.high) == pytest.approx(np.quantile(gaps, [0.025, 0.975]), abs=0.02)


def test_too_few_requests_give_no_difference():
    few = sum((RatioSums.of(*pair) for pair in ONE[:3]), RatioSums())
    assert difference(few, few).value is None
    assert "unknown, one of them served too few" in difference(few, few).sentence(0, 1)
