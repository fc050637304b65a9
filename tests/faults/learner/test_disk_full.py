"""No room for a file, from a point of a round on: the round fails, nothing half is seen, and room heals it."""

import pytest
from paceline.buffer.base import MAX_DELIVERIES

BATCH = 16
#: What is written behind these: weights of a version, the record for MLflow, the checkpoint.
POINTS = ("before_the_gate", "behind_the_verdict", "before_the_checkpoint")


def hidden(folder):
    return [path for path in folder.rglob(".writing-*") if path.is_dir()]


def says_where(said, house):
    """Whether a round failed with the path that could not be written, and the room there is."""
    where, room = str(house.folder / "data"), "MiB are free there: make room"
    return said.get("error") == "OSError" and where in said["why"] and room in said["why"]


@pytest.mark.guarantee("disk-full")
@pytest.mark.parametrize("point", POINTS)
def test_a_round_without_room_fails_says_so_and_is_made_up_for(house, point):
    learner = house.learn(BATCH)
    before = house.board.read()
    house.send(BATCH)
    learner.order("arm", point=point, how="pause")
    assert house.round(learner) == {"at": point}
    learner.order("fill_disk")
    said = learner.go_on()
    assert says_where(said, house), said
    house.assert_no_half_version()
    assert hidden(house.folder / "data") == []
    assert house.buffer.counts().pending == BATCH
    if point == "before_the_gate":
        assert house.board.read().rows == before.rows
    for _ in range(MAX_DELIVERIES + 1):  # a trace that is handed out oftener becomes a dead letter
        house.wait_for_lease()
        assert learner.round()["error"] == "OSError"
    learner.order("free_disk")
    house.learn_all(learner)
    house.assert_accounted(house.sent)
    house.assert_sound()


@pytest.mark.guarantee("disk-full")
def test_a_first_round_without_room_puts_nothing_on_the_board(house):
    house.send(BATCH)
    learner = house.learner()
    learner.order("fill_disk")
    said = learner.round()
    assert says_where(said, house), said
    assert house.board.events() == []
    learner.order("free_disk")
    house.learn_all(learner)
    house.assert_accounted(house.sent)
    house.assert_sound()
