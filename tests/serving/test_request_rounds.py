"""Rounds of a request, cut at the checkpoints of a trial, and their way through a heartbeat."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.buffer.board.member_status import RequestSaid
from paceline.policies.acceptance import Tally
from paceline.serving.watch.request_rounds import RequestRounds, begun_said, read_begun, read_request_rounds

CHECKPOINTS = [2, 4]


def made(*accepted):
    request = RequestRounds(request_id="r", checkpoints=CHECKPOINTS)
    for drafts in accepted:
        request.add(drafts)
    return request


def test_segments_are_cut_at_the_checkpoints_that_were_reached():
    assert list(made(1, 0, 3, 2, 1).segments()) == [Tally(1, 2), Tally(5, 2), Tally(1, 1)]
    assert list(made(1, 0, 3).segments()) == [Tally(1, 2), Tally(3, 1)]
    assert list(made(2).segments()) == [Tally(2, 1)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_a_heartbeat_brings_the_same_segments_back(accepted):
    request = made(*accepted)
    back = read_request_rounds(request.said(), CHECKPOINTS)
    assert back is not None
    assert list(back.segments()) == list(request.segments())
    assert back.request_id == made(3).digest != "r"  # always the same, and not its id
    assert (back.accepted, back.rounds) == (sum(accepted), len(accepted))


@pytest.mark.parametrize(
    "value",
    [
        ["r", [], 2, 2],  # two rounds reach the first checkpoint
        ["r", [1, 2], 2, 2],
        ["r", [3], 2, 2],  # more at the checkpoint than in all
        ["r", [-1], 2, 2],
        ["r", [], 0, 0],
    ],
)
def test_rounds_that_make_no_sense_are_none(value):
    assert read_request_rounds(RequestSaid(*value), CHECKPOINTS) is None


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_a_heartbeat_brings_the_same_begins_back(accepted):
    request = made(*accepted)
    rows = begun_said([request], 1)
    reached = [checkpoint for checkpoint in CHECKPOINTS if checkpoint <= len(accepted)]
    assert bool(rows) == bool(reached)
    for row in rows:
        assert row.digest == request.digest
        assert read_begun(row, CHECKPOINTS) == [Tally(sum(accepted[:checkpoint]), checkpoint) for checkpoint in reached]
