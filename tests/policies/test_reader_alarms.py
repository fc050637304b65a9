"""What a reader finds wrong with members that cannot say so, and whether traffic moved."""

import pytest
from paceline.policies.guard import AlarmName
from paceline.policies.readings.reader_alarms import APART_S, SILENT_S, drafts_apart, member_silent
from paceline.policies.readings.traffic_move import traffic_move
from paceline.policies.verdict_words import alarm_sentence


@pytest.mark.parametrize(
    ("unseen_s", "is_alive", "is_raised"),
    [
        (SILENT_S - 0.1, True, False),
        (SILENT_S, True, True),  # its heartbeat lasts longer than it may be silent
        (0.1, False, True),
        (600.0, False, True),
    ],
)
def test_a_member_is_silent_after_its_limit_or_once_its_heartbeat_has_ended(unseen_s, is_alive, is_raised):
    alarm = member_silent(unseen_s, is_alive=is_alive)
    assert (alarm is not None) == is_raised
    if alarm is not None:
        assert alarm.name is AlarmName.MEMBER_SILENT
        assert alarm_sentence(alarm.name, alarm.figures).startswith(f"not seen for {unseen_s:.0f} s: ")


@pytest.mark.parametrize(
    ("drafts", "live", "for_s", "is_canary", "named"),
    [
        ({"a": 5, "b": 5}, 5, APART_S, False, None),
        ({"a": 5, "b": 4}, 5, APART_S - 1, False, None),  # they take a new version one after another
        ({"a": 5, "b": 4}, 5, APART_S, True, None),
        ({"a": 5, "b": 4}, None, APART_S, False, None),
        ({"a": 5, "b": 4, "c": None}, 5, APART_S, False, "b with 4, c with nothing known"),
        ({"a": 4}, 5, APART_S, False, "a with 4"),
        ({}, 5, APART_S, False, None),
    ],
)
def test_replicas_that_do_not_follow_the_board_are_named(drafts, live, for_s, is_canary, named):
    alarm = drafts_apart(drafts, live, for_s=for_s, is_canary=is_canary)
    assert (alarm is not None) == (named is not None)
    if alarm is not None:
        said = alarm_sentence(alarm.name, alarm.figures)
        assert said == f"version 5 is live for 300 s, and these draft with another: {named}"


@pytest.mark.parametrize(
    ("then", "now", "share", "has_moved"),
    [
        ({"py": 30}, {"py": 30}, 0.0, False),
        ({"py": 30}, {"prose": 30}, 1.0, True),
        ({"py": 50, "prose": 50}, {"py": 80, "prose": 20}, 0.3, True),
        ({"py": 50, "prose": 50}, {"py": 79, "prose": 21}, 0.29, False),
        ({"py": 30, "": 70}, {"py": 30, "": 70}, 0.0, False),
    ],
)
def test_traffic_moved_by_the_share_of_requests_that_would_have_to_change_their_label(then, now, share, has_moved):
    move = traffic_move(then, now)
    assert move.share == pytest.approx(share)
    assert move.has_moved == has_moved


@pytest.mark.parametrize(
    ("then", "now", "why"),
    [
        ({"": 100}, {"": 100}, "requests name no paceline_label"),
        ({"py": 29}, {"py": 100}, "29 requests then and 100 now, 30 of each needed"),
        ({"py": 100}, {}, "100 requests then and 0 now, 30 of each needed"),
    ],
)
def test_what_cannot_be_told_of_traffic_is_said(then, now, why):
    move = traffic_move(then, now)
    assert (move.share, move.has_moved, move.why_unknown) == (None, False, why)
