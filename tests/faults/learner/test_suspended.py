"""A learner suspended for longer than its lease, as by a laptop's lid or a busy hypervisor, in round after round."""

import os
import signal
from contextlib import contextmanager

import pytest
from paceline.buffer.base import MAX_DELIVERIES

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
@pytest.mark.parametrize("point", ["before_the_gate", "between_folder_and_board"])
def test_rounds_that_lose_their_lease_make_no_dead_letters_however_many_they_are(house, point):
    house.send(BATCH)
    learner = house.learner(ROUND_LEASE_S=SHORT_LEASE_S)
    for _ in range(MAX_DELIVERIES + 1):
        learner.order("arm", point=point, how="pause")
        assert house.round(learner) == {"at": point}
        with suspended(learner):
            house.wait_for_lease()
        said = learner.go_on()
        assert said.get("error") == "LeaseLost", said
    house.learn_all(learner)
    house.assert_accounted(house.sent)
    house.assert_sound()


@pytest.mark.guarantee("learner-suspended")
def test_traces_of_a_suspended_learner_are_learnt_by_another_and_not_twice(house):
    house.send(BATCH)
    sleeper = house.learner(ROUND_LEASE_S=SHORT_LEASE_S, LEARNER="sleeper")
    sleeper.order("arm", point="before_the_gate", how="pause")
    assert house.round(sleeper) == {"at": "before_the_gate"}
    with suspended(sleeper):
        house.learn_all(house.learner())
        before = house.board.read()
    assert sleeper.go_on()["error"] == "LeaseLost"
    assert house.board.read() == before
    house.learn_more(sleeper, BATCH)
    house.assert_accounted(house.sent)
    house.assert_sound()
