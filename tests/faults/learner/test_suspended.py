"""A learner suspended for longer than its lease, as by a closed laptop, in one learning round after another."""

import os
import signal
from contextlib import contextmanager

import pytest
from matrix import cases
from paceline.buffer.stream.trace_buffer import MAX_DELIVERIES

BATCH = 16
SHORT_LEASE_S = "0.5"


@contextmanager
def suspended(learner):
    os.kill(learner.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(learner.pid, signal.SIGCONT)


@pytest.mark.guarantee("learner-suspended")
@pytest.mark.parametrize("point", cases(["before_the_gate", "between_folder_and_board"], everyday=["before_the_gate"]))
def test_rounds_that_lose_their_lease_make_no_dead_letters_however_many_they_are(world, point):
    world.send(BATCH)
    learner = world.learner(ROUND_LEASE_S=SHORT_LEASE_S)
    for _ in range(MAX_DELIVERIES + 1):
        learner.order("arm", point=point, how="pause")
        assert world.round(learner) == {"at": point}
        with suspended(learner):
            world.wait_for_lease()
        answer = learner.go_on()
        assert answer.get("error") == "LeaseLost", answer
    world.learn_all(learner)
    world.assert_accounted(world.sent)
    world.assert_sound()


@pytest.mark.guarantee("learner-suspended")
def test_traces_of_a_suspended_learner_are_learned_by_another_and_not_twice(world):
    world.send(BATCH)
    sleeper = world.learner(ROUND_LEASE_S=SHORT_LEASE_S, LEARNER="sleeper")
    sleeper.order("arm", point="before_the_gate", how="pause")
    assert world.round(sleeper) == {"at": "before_the_gate"}
    with suspended(sleeper):
        world.learn_all(world.learner())
        before = world.board.read()
    assert sleeper.go_on()["error"] == "LeaseLost"
    assert world.board.read() == before
    world.learn_more(sleeper, BATCH)
    world.assert_accounted(world.sent)
    world.assert_sound()
