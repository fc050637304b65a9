"""Redis killed with SIGKILL in the middle of a learning round, or between two, and back with its data or without."""

import pytest
from matrix import cases
from paceline.buffer.board.weights_file import sha256_of

BATCH = 16
#: Redis is called next.
POINTS = (
    "before_training",
    "between_folder_and_board",
    "between_candidate_and_verdict",
    "after_the_verdict",
    "between_checkpoint_and_ack",
)


def assert_started_again(world, before):
    """Version 0 is the draft the server was started with, and no other number names two sets of weights."""
    state = world.board.read()
    assert state.rows.keys() & before.rows.keys() == {0}
    assert state.rows[0].version.sha256 == sha256_of(world.speculator.draft / "model.safetensors")


@pytest.mark.guarantee("redis-killed", "redis-lost-its-data")
@pytest.mark.parametrize(
    "comes_back",
    cases(
        ["in the round", "in the round, empty", "after the round", "after the round, empty"],
        everyday=["in the round", "after the round, empty"],
    ),
)
@pytest.mark.parametrize("point", cases(POINTS, everyday=["between_candidate_and_verdict"]))
def test_a_learner_outlives_a_redis_killed_in_its_round(own_world, killable_redis, point, comes_back):
    world = own_world
    in_time = comes_back.startswith("in")
    with_data = not comes_back.endswith("empty")
    learner = world.learn(BATCH)
    before = world.board.read()
    world.send(BATCH)
    learner.order("arm", point=point, how="pause")
    assert world.round(learner) == {"at": point}
    killable_redis.die()
    if in_time:
        killable_redis.come_back(with_data=with_data)
    answer = learner.go_on()
    if not in_time:
        assert answer["error"] == "BufferUnavailable", answer
        assert "start Redis" in answer["why"]
        assert learner.round()["error"] == "BufferUnavailable"
        killable_redis.come_back(with_data=with_data)
    elif not with_data:
        assert answer.get("error") == (None if point == "between_checkpoint_and_ack" else "LeaseLost"), answer
    expected = world.sent if with_data else world.send(BATCH)
    world.learn_all(learner)
    world.assert_accounted(expected)
    world.assert_sound()
    if not with_data:
        assert_started_again(world, before)


@pytest.mark.guarantee("redis-killed-between-rounds")
@pytest.mark.parametrize(
    "is_same_process", cases([True, False], everyday=[True]), ids=["same_learner", "its_successor"]
)
def test_a_board_that_lost_its_data_between_two_rounds_starts_again_by_itself(
    own_world, killable_redis, is_same_process
):
    world = own_world
    learner = world.learn(BATCH, ROUND_LEASE_S="60")
    world.learn_more(learner, BATCH)
    before = world.board.read()
    rounds = world.board.heartbeats()["learner:killable"].life.rounds
    killable_redis.die()
    killable_redis.come_back(with_data=False)
    learner = learner if is_same_process else world.learner()
    assert learner.round()["kind"] == "idle"
    assert world.board.read().live == 0
    new = world.learn_more(learner, BATCH)
    world.assert_accounted(new)
    world.assert_sound()
    assert_started_again(world, before)
    # The checkpoint is kept, and so is what was learned before.
    assert world.board.heartbeats()["learner:killable"].life.rounds > rounds


@pytest.mark.guarantee("redis-killed-between-rounds")
def test_a_redis_that_restarts_with_its_data_between_two_rounds_changes_nothing(own_world, killable_redis):
    world = own_world
    learner = world.learn(BATCH)
    before = world.board.read()
    counts = world.buffer.counts()
    killable_redis.die()
    killable_redis.come_back(with_data=True)
    assert (world.board.read(), world.buffer.counts()) == (before, counts)
    world.learn_more(learner, BATCH)
    world.assert_accounted(world.sent)
    world.assert_sound()
