"""When learners were busy, told from entries of their histories: where a round began and ended between two of them."""

import pytest
from paceline.buffer.board.counters import Counters, LearnerCounters
from paceline.policies.readings.causes.amounts import BUSY, IDLE, PARTLY, UNKNOWN
from paceline.policies.readings.causes.busy_learners import HEARD_WITHIN_S, busy_spans, learner_state

EVERY_S = 5.0


def history(rounds: list[tuple[float, float]], until_s: float, boot: str = "l") -> list[Counters]:
    """Entries every five seconds of a learner that ran these rounds, each from and to a second."""
    return [entry(i * EVERY_S, rounds, boot) for i in range(int(until_s / EVERY_S) + 1)]


def entry(at: float, rounds: list[tuple[float, float]], boot: str = "l") -> Counters:
    busy_s = sum(max(min(ended, at) - began, 0.0) for began, ended in rounds)
    is_busy = any(began < at < ended for began, ended in rounds)
    seconds = {"idle": at - busy_s, "judge": busy_s / 4, "train": 3 * busy_s / 4}
    return Counters(at=at, boot=boot, learner=LearnerCounters(is_busy=is_busy, seconds=seconds))


def total(spans: list[tuple[float, float]]) -> float:
    return sum(ended - began for began, ended in spans)


def test_a_round_has_its_own_begin_and_end_and_not_those_of_the_entries() -> None:
    spans = busy_spans(history([(7.0, 23.5)], 40.0))
    assert (spans[0][0], spans[-1][1], total(spans)) == pytest.approx((7.0, 23.5, 16.5))
    states = [learner_state([spans], at, at + EVERY_S) for at in (0.0, 4.0, 7.0, 12.0, 18.4, 21.0, 23.5)]
    assert states == [IDLE, PARTLY, BUSY, BUSY, BUSY, PARTLY, IDLE]


def test_of_a_round_between_two_entries_its_length_is_known() -> None:
    assert total(busy_spans(history([(11.0, 13.0)], 20.0))) == pytest.approx(2.0)
    assert total(busy_spans(history([], 20.0))) == 0.0


def test_a_learner_that_is_heard_of_no_more_is_not_busy_for_ever() -> None:
    spans = busy_spans(history([(7.0, 99.0)], 20.0))
    assert spans[-1][1] == 20.0 + HEARD_WITHIN_S
    assert learner_state([spans], 40.0, 45.0) == IDLE


def test_a_restarted_learner_is_another_one() -> None:
    spans = busy_spans([*history([(7.0, 99.0)], 20.0), entry(50.0, [], boot="m"), entry(55.0, [], boot="m")])
    assert (spans[0][0], spans[-1][1]) == pytest.approx((7.0, 20.0))


def test_one_busy_learner_of_two_is_enough_and_none_is_unknown() -> None:
    idle, busy = busy_spans(history([], 20.0)), busy_spans(history([(-1.0, 99.0)], 20.0))
    assert learner_state([idle, busy], 5.0, 10.0) == BUSY
    assert learner_state([idle], 5.0, 10.0) == IDLE
    assert learner_state([], 5.0, 10.0) == UNKNOWN
