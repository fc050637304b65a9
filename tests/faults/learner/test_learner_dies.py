"""kill -9 of a learner at every point of a learning round: its successor accounts for every trace and publishes whole
versions only.
"""

import signal

import pytest
from killable_learner import POINTS
from matrix import cases
from paceline.buffer.stream.trace_buffer import MAX_DELIVERIES

TRACES = 24
MLFLOW_POINT = "half_way_through_registering_with_mlflow"  # test_mlflow_away.py
REST_POINTS = [point for point in POINTS if "rest" in point]
LEARN_POINTS = [point for point in POINTS if point not in {MLFLOW_POINT, *REST_POINTS}]


@pytest.mark.guarantee("learner-killed")
@pytest.mark.parametrize(
    "point", cases(LEARN_POINTS, everyday=["half_way_through_publishing", "between_checkpoint_and_ack"])
)
def test_a_learner_killed_at_any_point_leaves_nothing_unaccounted_and_nothing_half(world, point):
    traces = world.send(TRACES)
    victim = world.learner()
    victim.order("arm", point=point, how="die")
    with pytest.raises(EOFError):
        world.round(victim)
    assert victim.end() == -signal.SIGKILL
    world.assert_no_half_version()
    world.learn_all(world.learner())
    world.assert_accounted(traces)
    world.assert_sound()


@pytest.mark.guarantee("resting-learner-killed")
@pytest.mark.parametrize("point", cases(REST_POINTS, everyday=["half_way_through_the_notes_of_a_rest"]))
def test_a_learner_killed_while_it_rests_rests_each_trace_once_and_learning_begins_afterwards(world, point):
    rested = world.send(TRACES)
    victim = world.learner(LEARN="never")
    victim.order("arm", point=point, how="die")
    with pytest.raises(EOFError):
        world.round(victim)
    assert victim.end() == -signal.SIGKILL
    resting = world.learner(LEARN="never")
    world.learn_all(resting)
    world.assert_accounted(rested, "rested")
    resting.end()
    learned = world.learn_more(world.learner(), 1 + TRACES)
    world.assert_sound()
    kept = world.held_out(rested) + world.held_out(learned)
    assert dict(world.buffer.counts().acked) == {
        "rested": TRACES - world.held_out(rested),
        "learned": len(learned) - world.held_out(learned),
        "held_out": kept,
    }


@pytest.mark.guarantee("poison-trace")
@pytest.mark.fault_matrix  # tests/learner/test_loop.py has the same for a fault that kills nobody
def test_of_many_traces_the_one_that_kills_every_learner_ends_alone(world):
    traces = world.send(TRACES)
    poison = next(trace for trace in traces[TRACES // 2 :] if not world.held_out([trace]))
    deaths = 0
    while world.buffer.counts().pending:
        learner = world.learner()
        learner.order("poison", trace=poison.trace_id)
        try:
            world.round(learner)
        except EOFError:
            deaths += 1
        learner.end()

    counts = world.buffer.counts()
    kept = world.held_out(traces)
    assert (deaths, counts.dead_lettered) == (MAX_DELIVERIES, 1)
    assert dict(counts.acked) == {"learned": TRACES - kept - 1, "held_out": kept}
    world.assert_sound()


@pytest.mark.guarantee("two-learners")
def test_two_learners_at_once_learn_every_trace_once(world):
    world.send(TRACES)
    pair = [world.learner(LEARNER=name, ROUND_LEASE_S="60") for name in ("first", "second")]
    for learner in pair:
        learner.send("round")
    answers = [learner.receive() for learner in pair]
    counts = world.buffer.counts()
    assert sum(counts.acked.values()) + counts.pending == TRACES
    assert sum(answer.get("learned", 0) for answer in answers) == counts.acked["learned"] > 0
    assert set(counts.acked) <= {"learned", "held_out"}
    world.assert_sound()
