"""What happened between two entries of a history: cells that gave way, restarts, drafts, and the learner's state."""

import pytest
from made_histories import LEARNER, REPLICA, Conditions, changed, histories
from paceline.buffer.board.counters import (
    Counters,
    LearnerCounters,
    SchedulerCounters,
    ServedCell,
    ServedCounters,
    StepCell,
)
from paceline.buffer.errors import ConfigError
from paceline.policies.readings.causes.amounts import BUSY, IDLE, PARTLY, UNKNOWN, ServedKey, StepKey, Steps
from paceline.policies.readings.causes.periods import draft_periods, since_periods
from paceline.policies.readings.causes.stretches import stretches


def entry(at: float, *cells: tuple[int, str, int, int], boot: str = "b", draft: int = 1) -> Counters:
    """Served cells as (draft, label, rounds, accepted)."""
    served = [ServedCell(draft=d, label=label, kind="greedy", rounds=r, accepted=a) for d, label, r, a in cells]
    return Counters(at=at, boot=boot, draft=draft, served=ServedCounters(cells=served))


def counted(*entries: Counters) -> dict[tuple[int, str], tuple[int, int]]:
    """Of the last of these entries' stretches: (draft, label) -> (rounds, accepted)."""
    served = stretches({REPLICA: entries})[-1].amounts.served
    return {(key.draft, key.label): (cell.rounds, cell.accepted) for key, cell in served.items()}


def test_the_difference_of_two_entries_is_what_happened() -> None:
    assert counted(entry(0, (1, "py", 10, 14)), entry(5, (1, "py", 40, 50), (1, "prose", 3, 1))) == {
        (1, "py"): (30, 36),
        (1, "prose"): (3, 1),
    }


def test_steps_and_seconds_are_differences_too() -> None:
    def clock(at: float, steps: int) -> Counters:
        cell = StepCell(
            bucket=4, draft_steps=3, steps=steps, seconds=steps * 0.02, tokens=8 * steps, requests=4 * steps
        )
        return Counters(at=at, boot="b", scheduler=SchedulerCounters(steps=[cell], seconds={"decode": steps * 0.02}))

    found = stretches({REPLICA: [clock(0, 10), clock(5, 110)]})[0].amounts
    assert found.steps[StepKey(4, 3, UNKNOWN)] == Steps(100, pytest.approx(2.0), 800, 400)
    assert found.seconds == {"decode": pytest.approx(2.0)}


@pytest.mark.parametrize(
    ("ends", "state"), [((False, False), IDLE), ((True, True), BUSY), ((False, True), PARTLY), ((True, False), PARTLY)]
)
def test_the_learner_is_joined_by_time(ends: tuple[bool, bool], state: str) -> None:
    found = histories([(5.0, Conditions())])
    found[LEARNER] = [
        Counters(at=-1.0, boot="l", learner=LearnerCounters(is_busy=ends[0])),
        Counters(at=4.0, boot="l", learner=LearnerCounters(is_busy=ends[1], seconds={"train": 2.5 * sum(ends)})),
    ]
    assert {key.learner for key in stretches(found)[0].amounts.steps} == {state}


def test_of_two_learners_one_is_enough() -> None:
    busy, idle = (
        [Counters(at=at, boot="l", learner=LearnerCounters(is_busy=busy)) for at in (0, 5)] for busy in (True, False)
    )
    found = {REPLICA: histories([(5.0, Conditions())])[REPLICA], "learner:a": idle, "learner:b": busy}
    assert {key.learner for key in stretches(found)[0].amounts.steps} == {BUSY}


def test_now_is_the_last_minute_and_before_is_what_was_asked_for() -> None:
    found = histories([(700.0, Conditions())])
    before, now = since_periods(found, 600.0, 700.0)
    assert (before.name, now.name) == ("in the 10 minutes before", "in the last minute")
    assert (len(before.stretches), len(now.stretches)) == (120, 12)
    assert (before.began_s, before.ended_s) == (40.0, 640.0)


def test_a_short_time_is_compared_with_a_third_of_it() -> None:
    before, now = since_periods(histories([(200.0, Conditions())]), 90.0, 200.0)
    assert (before.name, now.name) == ("in the 90 seconds before", "in the last 30 seconds")
    assert (len(before.stretches), len(now.stretches)) == (18, 6)


def test_a_draft_is_compared_with_the_one_before_it() -> None:
    first = Conditions(draft=4)
    found = histories([(60.0, first), (30.0, changed(first, draft=5)), (20.0, changed(first, draft=6))])
    before, now = draft_periods(found, 5)
    assert (before.name, now.name) == ("while draft 4 served", "while draft 5 served")
    # An entry names the draft of its own time, so the stretch that ends with a new draft's first entry is left out.
    assert (len(before.stretches), len(now.stretches)) == (12, 5)
    assert {key[2] for period in (now, before) for key in period.amounts.served} == {4, 5}
    assert ServedKey("py", "greedy", 6) not in now.amounts.served


def test_every_replica_is_compared_with_itself() -> None:
    four, five = Conditions(draft=4), Conditions(draft=5)
    found = {
        "replica:a": histories([(60.0, four), (30.0, five)])[REPLICA],
        "replica:b": histories([(90.0, four)])[REPLICA],
    }
    before, now = draft_periods(found, 5)
    assert before.amounts.replicas == now.amounts.replicas == {"replica:a"}


@pytest.mark.parametrize("draft", [4, 9])
def test_a_draft_that_took_over_from_none_is_an_error(draft: int) -> None:
    with pytest.raises(ConfigError, match=rf"got {draft}, .* where \[4\] drafted"):
        draft_periods(histories([(60.0, Conditions(draft=4))]), draft)
