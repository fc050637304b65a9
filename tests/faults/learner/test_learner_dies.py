"""kill -9 of a learner at every point of a round: its successor leaves no trace unaccounted and no half version."""

import signal

import pytest
from mortal_learner import POINTS

TRACES = 24
MLFLOW_POINT = "half_way_through_telling_mlflow"  # test_mlflow_away.py


@pytest.mark.parametrize("point", [point for point in POINTS if point != MLFLOW_POINT])
def test_a_learner_killed_at_any_point_leaves_nothing_unaccounted_and_nothing_half(house, point):
    traces = house.send(TRACES)
    victim = house.learner()
    victim.order("arm", point=point, how="die")
    with pytest.raises(EOFError):
        victim.round()
    assert victim.end() == -signal.SIGKILL
    house.assert_no_half_version()
    house.learn_all(house.learner())
    house.assert_accounted(traces)
    house.assert_sound()


def test_two_learners_at_once_learn_every_trace_once(house):
    house.send(TRACES)
    pair = [house.learner(LEARNER=name) for name in ("first", "second")]
    for learner in pair:
        learner.tell("round")
    said = [learner.hear() for learner in pair]
    counts = house.buffer.counts()
    assert sum(counts.acked.values()) + counts.pending == TRACES
    assert sum(line.get("learned", 0) for line in said) == counts.acked["learned"] > 0
    assert set(counts.acked) <= {"learned", "held_out"}
    house.assert_sound()
