"""Traces leave the backlog in their order, as many at once as one append takes."""

from types import SimpleNamespace

import numpy as np
import pytest
from paceline.serving.courier import backlog
from paceline.serving.courier.backlog import APPEND_TRACES, Backlog, size_bytes


def trace(size):
    nothing = np.zeros(0, np.int8)
    rounds = SimpleNamespace(teacher_ids=nothing, teacher_logprobs=nothing)
    return SimpleNamespace(features=np.zeros(size, np.int8), prefix=nothing, tokens=nothing, rounds=rounds)


def waiting(*sizes, max_bytes=1 << 40):
    found = Backlog(max_bytes)
    for size in sizes:
        found.add(trace(size))
    return found


@pytest.mark.parametrize(
    ("sizes", "most_bytes", "at_once"),
    [
        ([5, 5, 5], 10, 2),
        ([5, 5, 5], 9, 1),
        ([50, 5], 10, 1),  # larger than an append, and alone
        ([5, 50], 10, 1),
        ([0] * (APPEND_TRACES + 3), 10, APPEND_TRACES),
        ([], 10, 0),
    ],
)
def test_the_head_is_what_one_append_takes(monkeypatch, sizes, most_bytes, at_once):
    monkeypatch.setattr(backlog, "APPEND_BYTES", most_bytes)
    assert [size_bytes(each) for each in waiting(*sizes).head()] == sizes[:at_once]


def test_the_oldest_are_cut_until_the_rest_fits():
    found = waiting(4, 1, 3, 2, max_bytes=5)
    assert found.is_over_full
    assert found.cut() == 2
    assert not found.is_over_full
    assert (len(found), found.cut(), found.pop(), found.pop(), len(found)) == (2, 0, 3, 2, 0)


def test_one_that_is_larger_than_the_whole_backlog_is_cut_too():
    found = waiting(9, max_bytes=5)
    assert (found.cut(), len(found), found.is_over_full) == (1, 0, False)
