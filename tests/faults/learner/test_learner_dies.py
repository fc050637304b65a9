"""kill -9 of a learner at every point of a round: its successor leaves no trace unaccounted and no half version."""

import signal

import pytest
from killable_learner import POINTS
from paceline.buffer.base import MAX_DELIVERIES

TRACES = 24
MLFLOW_POINT = "half_way_through_telling_mlflow"  # test_mlflow_away.py
REST_POINTS = [point for point in POINTS if "rest" in point]


@pytest.mark.guarantee("learner-killed")
@pytest.mark.parametrize("point", [point for point in POINTS if point not in {MLFLOW_POINT, *REST_POINTS}])
def test_a_learner_killed_at_any_point_leaves_nothing_unaccounted_and_nothing_half(house, point):
    traces = house.send(TRACES)
    victim = house.learner()
    victim.order("arm", point=point, how="die")
    with pytest.raises(EOFError):
        house.round(victim)
    assert victim.end() == -signal.SIGKILL
    house.assert_no_half_version()
    house.learn_all(house.learner())
    house.assert_accounted(traces)
    house.assert_sound()


@pytest.mark.guarantee("resting-learner-killed")
@pytest.mark.parametrize("point", REST_POINTS)
def test_a_learner_killed_while_it_rests_rests_each_trace_once_and_learning_begins_behind_it(house, point):
    rested = house.send(TRACES)
    victim = house.learner(LEARN="never")
    victim.order("arm", point=point, how="die")
    with pytest.raises(EOFError):
        house.round(victim)
    assert victim.end() == -signal.SIGKILL
    resting = house.learner(LEARN="never")
    house.learn_all(resting)
    house.assert_accounted(rested, "rested")
    resting.end()
    learnt = house.learn_more(house.learner(), 1 + TRACES)
    house.assert_sound()
    kept = house.held_out(rested) + house.held_out(learnt)
    assert dict(house.buffer.counts().acked) == {
        "rested": TRACES - house.held_out(rested),
        "learned": len(learnt) - house.held_out(learnt),
        "held_out": kept,
    }


@pytest.mark.guarantee("poison-trace")
def test_of_many_traces_the_one_that_kills_every_learner_ends_alone(house):
    traces = house.send(TRACES)
    poison = next(trace for trace in traces[TRACES // 2 :] if not house.held_out([trace]))
    deaths = 0
    while house.buffer.counts().pending:
        learner = house.learner()
        learner.order("poison", trace=poison.trace_id)
        try:
            house.round(learner)
        except EOFError:
            deaths += 1
        learner.end()

    counts, kept = house.buffer.counts(), house.held_out(traces)
    assert (deaths, counts.dead_lettered) == (MAX_DELIVERIES, 1)
    assert dict(counts.acked) == {"learned": TRACES - kept - 1, "held_out": kept}
    house.assert_sound()


@pytest.mark.guarantee("two-learners")
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
