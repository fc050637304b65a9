"""The wall clock of a learner jumps a day forwards or backwards; Redis' clock and the monotonic one do not.

Leases, claims and heartbeats use Redis' own time; a learner's clock only dates what people read.
"""

import pytest
from made_versions import made_version
from matrix import cases
from paceline.buffer.board.version import VersionState
from paceline.buffer.stream.trace_buffer import entry_order
from waiting import until

BATCH = 16
DAY_S = 86_400.0
both_ways = pytest.mark.parametrize("seconds", cases([DAY_S, -DAY_S], everyday=[-DAY_S]), ids=["forwards", "backwards"])


@pytest.mark.guarantee("learner-clock-jumps")
@both_ways
@pytest.mark.parametrize(
    "point",
    cases(["between_two_rounds", "before_the_gate", "between_candidate_and_verdict"], everyday=["before_the_gate"]),
)
def test_rounds_go_on_over_a_jump_of_the_clock(world, point, seconds):
    learner = world.learn(BATCH, ROUND_LEASE_S="60")
    world.send(BATCH)
    if point == "between_two_rounds":
        learner.order("skew", seconds=seconds)
    else:
        learner.order("arm", point=point, how="pause")
        assert world.round(learner) == {"at": point}
        learner.order("skew", seconds=seconds)
        assert learner.go_on()["kind"] == "learned"
    world.learn_all(learner)
    world.learn_more(learner, BATCH)
    world.learn_more(world.learner(LEARNER="successor"), BATCH)  # its clock is right
    world.assert_accounted(world.sent)
    world.assert_sound()
    events = world.board.events()
    assert [event.event_id for event in events] == sorted((event.event_id for event in events), key=entry_order)
    seen = world.board.heartbeats()["learner:successor"]
    acked = world.buffer.counts().acked
    assert {outcome: seen.life.traces[outcome] for outcome in acked} == acked


@pytest.mark.guarantee("learner-clock-jumps")
@both_ways
def test_a_lease_outlives_its_holders_clock_and_keeps_others_out(world, seconds):
    world.send(BATCH)
    holder = world.learner(LEARNER="holder", ROUND_LEASE_S="60")
    other = world.learner(LEARNER="other")
    holder.order("arm", point="before_training", how="pause")
    assert world.round(holder) == {"at": "before_training"}
    holder.order("skew", seconds=seconds)
    other.order("skew", seconds=-seconds)
    assert other.round()["why"] == "another learner of default is at work"
    assert holder.go_on()["kind"] == "learned"
    world.assert_accounted(world.sent)


def put_canary(world):
    """A version on the board that drafts on one of two replicas, undecided."""
    live = world.board.read().rows[0].version
    number = world.board.next_number()
    world.board.register(
        made_version(number, 0, weights_uri=live.weights_uri, sha256=live.sha256),
        "ada",
        "try",
    )
    world.board.move(number, VersionState.CANARY, "ada", "try it", replica="a")
    return number


@pytest.mark.guarantee("canary-clock-jumps")
@both_ways
def test_a_canary_has_its_time_whatever_the_clock_says(world, seconds):
    learner = world.learn(BATCH, GATE_CONFIDENCE="0.999999", ROUND_LEASE_S="60")
    number = put_canary(world)
    learner.order("skew", seconds=seconds)
    assert learner.round()["why"].startswith(f"version {number} is canary")
    learner.order("skew", seconds=-seconds)
    assert learner.round()["why"].startswith(f"version {number} is canary")
    assert world.board.read().canary == number
    world.board.roll_back("ada", "enough", number)
    world.learn_more(learner, BATCH)
    world.assert_accounted(world.sent)


@pytest.mark.guarantee("canary-clock-jumps")
@both_ways
def test_a_canary_that_nobody_decides_ends_whatever_the_clock_says(world, seconds):
    world.learn(BATCH, GATE_CONFIDENCE="0.999999").end()
    number = put_canary(world)
    learner = world.learner(CANARY_LIMIT_S="0.2", GATE_CONFIDENCE="0.999999")
    learner.order("skew", seconds=seconds)
    world.send(BATCH)
    until(lambda: learner.round() and world.board.read().canary is None, "the overdue canary to be rolled back")
    assert world.board.read().rows[number].state is VersionState.ROLLED_BACK
    world.learn_all(learner)
    world.assert_accounted(world.sent)
