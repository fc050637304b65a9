"""Redis killed with SIGKILL in the middle of a round, or between two, and back with its data or without."""

import pytest
from paceline.buffer.weights_file import sha256_of

BATCH = 16
#: The calls of a round that reach for Redis lie behind these.
POINTS = (
    "before_training",
    "between_folder_and_board",
    "between_candidate_and_verdict",
    "behind_the_verdict",
    "between_checkpoint_and_ack",
)


def assert_begun_anew(house, before):
    """Version 0 is the draft the server was started with, and no other number stands for two sets of weights."""
    state = house.board.read()
    assert state.rows.keys() & before.rows.keys() == {0}
    assert state.rows[0].version.sha256 == sha256_of(house.speculator.draft / "model.safetensors")


@pytest.mark.guarantee("redis-killed", "redis-lost-its-data")
@pytest.mark.parametrize("with_data", [True, False], ids=["with_data", "without_data"])
@pytest.mark.parametrize("in_time", [True, False], ids=["back_in_the_round", "back_behind_the_round"])
@pytest.mark.parametrize("point", POINTS)
def test_a_learner_outlives_a_redis_killed_in_its_round(frail_house, frail_redis, point, in_time, with_data):
    house = frail_house
    learner = house.learn(BATCH)
    before = house.board.read()
    house.send(BATCH)
    learner.order("arm", point=point, how="pause")
    assert house.round(learner) == {"at": point}
    frail_redis.die()
    if in_time:
        frail_redis.come_back(with_data=with_data)
    said = learner.go_on()
    if not in_time:
        assert said["error"] == "BufferUnavailable", said
        assert "start Redis" in said["why"]
        assert learner.round()["error"] == "BufferUnavailable"
        frail_redis.come_back(with_data=with_data)
    elif not with_data:
        assert said.get("error") == (None if point == "between_checkpoint_and_ack" else "LeaseLost"), said
    expected = house.sent if with_data else house.send(BATCH)
    house.learn_all(learner)
    house.assert_accounted(expected)
    house.assert_sound()
    if not with_data:
        assert_begun_anew(house, before)


@pytest.mark.guarantee("redis-killed-between-rounds")
@pytest.mark.parametrize("is_same_process", [True, False], ids=["same_learner", "its_successor"])
def test_a_board_that_lost_its_data_between_two_rounds_begins_anew_by_itself(frail_house, frail_redis, is_same_process):
    house = frail_house
    learner = house.learn(BATCH)
    house.learn_more(learner, BATCH)
    before = house.board.read()
    rounds = house.board.heartbeats()["learner:killable"]["rounds"]
    frail_redis.die()
    frail_redis.come_back(with_data=False)
    learner = learner if is_same_process else house.learner()
    assert learner.round()["kind"] == "idle"
    assert house.board.read().live == 0
    new = house.learn_more(learner, BATCH)
    house.assert_accounted(new)
    house.assert_sound()
    assert_begun_anew(house, before)
    # The checkpoint goes on: what was learnt before is not unlearnt.
    assert house.board.heartbeats()["learner:killable"]["rounds"] > rounds


@pytest.mark.guarantee("redis-killed-between-rounds")
def test_a_redis_that_restarts_with_its_data_between_two_rounds_changes_nothing(frail_house, frail_redis):
    house = frail_house
    learner = house.learn(BATCH)
    before, counts = house.board.read(), house.buffer.counts()
    frail_redis.die()
    frail_redis.come_back(with_data=True)
    assert (house.board.read(), house.buffer.counts()) == (before, counts)
    house.learn_more(learner, BATCH)
    house.assert_accounted(house.sent)
    house.assert_sound()
