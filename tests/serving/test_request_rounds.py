"""Rounds of a request, cut where a trial looks at them, and their way through another replica's reading."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies.acceptance import Tally
from paceline.serving.watch.request_rounds import RequestRounds, read_request_rounds

LOOKS = [2, 4]


def made(*accepted):
    stretch = RequestRounds("r", LOOKS)
    for drafts in accepted:
        stretch.add(drafts)
    return stretch


def test_pieces_are_cut_at_the_looks_that_were_reached():
    assert list(made(1, 0, 3, 2, 1).pieces()) == [Tally(1, 2), Tally(5, 2), Tally(1, 1)]
    assert list(made(1, 0, 3).pieces()) == [Tally(1, 2), Tally(3, 1)]
    assert list(made(2).pieces()) == [Tally(2, 1)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_a_reading_brings_the_same_pieces_back(accepted):
    stretch = made(*accepted)
    back = read_request_rounds(stretch.status(), LOOKS)
    assert back is not None
    assert list(back.pieces()) == list(stretch.pieces())
    assert back.request_id == made(3).status()[0] != "r"  # the same for every stretch of the request, and not its id
    assert (back.accepted, back.rounds) == (sum(accepted), len(accepted))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        ["r", [1], 1],
        [7, [1], 2, 2],
        ["r", ["1"], 2, 2],
        ["r", [], 2, 2],  # two rounds reach the first look
        ["r", [1, 2], 2, 2],
        ["r", [3], 2, 2],  # more at the look than in all
        ["r", [-1], 2, 2],
        ["r", [], 0, 0],
    ],
)
def test_what_is_no_stretch_is_none(value):
    assert read_request_rounds(value, LOOKS) is None
