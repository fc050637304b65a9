"""No room for a file, from some point of a learning round on: it fails, nothing half is seen, and room mends it."""

import pytest
from matrix import cases
from paceline.buffer.stream.trace_buffer import MAX_DELIVERIES

BATCH = 16
#: What is written next: weights of a version, the record for MLflow, the checkpoint.
POINTS = ("before_the_gate", "after_the_verdict", "before_the_checkpoint")


def hidden(folder):
    return [path for path in folder.rglob(".writing-*") if path.is_dir()]


def names_the_path(answer, world):
    """Whether a round failed with the path that could not be written, and the room there is."""
    where = str(world.folder / "data")
    room = "MiB are free there: make room"
    return answer.get("error") == "OSError" and where in answer["why"] and room in answer["why"]


@pytest.mark.guarantee("disk-full")
@pytest.mark.parametrize("point", cases(POINTS, everyday=["before_the_gate"]))
def test_a_round_without_room_fails_says_so_and_is_made_up_for(world, point):
    learner = world.learn(BATCH, ROUND_LEASE_S="60")
    before = world.board.read()
    world.send(BATCH)
    learner.order("arm", point=point, how="pause")
    assert world.round(learner) == {"at": point}
    learner.order("fill_disk")
    answer = learner.go_on()
    assert names_the_path(answer, world), answer
    world.assert_no_half_version()
    assert hidden(world.folder / "data") == []
    assert world.buffer.counts().pending == BATCH
    if point == "before_the_gate":
        assert world.board.read().rows == before.rows
    for _ in range(MAX_DELIVERIES + 1):  # a trace delivered more often becomes a dead letter
        world.wait_for_lease()
        assert learner.round()["error"] == "OSError"
    learner.order("free_disk")
    world.learn_all(learner)
    world.assert_accounted(world.sent)
    world.assert_sound()


@pytest.mark.guarantee("disk-full")
def test_a_first_round_without_room_puts_nothing_on_the_board(world):
    world.send(BATCH)
    learner = world.learner(ROUND_LEASE_S="60")
    learner.order("fill_disk")
    answer = learner.round()
    assert names_the_path(answer, world), answer
    assert world.board.events() == []
    learner.order("free_disk")
    world.learn_all(learner)
    world.assert_accounted(world.sent)
    world.assert_sound()
