"""Counters come back from JSON as they were, and what anybody else wrote is no counters."""

import msgspec
import pytest
from paceline.buffer.board.counters import (
    Counters,
    SchedulerCounters,
    ServedCell,
    ServedCounters,
    StepCell,
    counters_of,
)


def test_counters_come_back_from_json() -> None:
    cell = ServedCell(draft=3, label="py", kind="greedy", rounds=9, accepted=14, ended=(2, 8, 12, 34, 50, 74))
    step = StepCell(bucket=4, draft_steps=3, steps=7, seconds=0.25, tokens=30, requests=20, durations=[0, 7])
    sent = Counters(
        at=1.5, boot="b", draft=3, served=ServedCounters(cells=[cell]), scheduler=SchedulerCounters(steps=[step])
    )
    assert counters_of(msgspec.json.decode(msgspec.json.encode(sent))) == sent


@pytest.mark.parametrize(
    "value", [None, [], {"at": 1.0}, {"at": "x", "boot": "b"}, {"at": 1.0, "boot": "b", "served": 3}]
)
def test_what_is_no_counters_is_none(value: object) -> None:
    assert counters_of(value) is None
