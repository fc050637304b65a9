"""The wall clock of a learner goes a day forwards or backwards; Redis' clock and the monotonic one stay.

Leases, claims and heartbeats are Redis' own time, so a learner's clock only dates what people read.
"""

import pytest
from paceline.buffer.base import place
from paceline.buffer.version import DraftVersion, VersionState
from waiting import until

BATCH, DAY_S = 16, 86_400.0
both_ways = pytest.mark.parametrize("seconds", [DAY_S, -DAY_S], ids=["forwards", "backwards"])


@both_ways
@pytest.mark.parametrize("point", ["between_two_rounds", "before_the_gate", "between_candidate_and_verdict"])
def test_rounds_go_on_over_a_jump_of_the_clock(house, point, seconds):
    learner = house.learn(BATCH)
    house.send(BATCH)
    if point == "between_two_rounds":
        learner.order("skew", seconds=seconds)
    else:
        learner.order("arm", point=point, how="pause")
        assert house.round(learner) == {"at": point}
        learner.order("skew", seconds=seconds)
        assert learner.go_on()["kind"] == "learned"
    house.learn_all(learner)
    house.learn_more(learner, BATCH)
    house.learn_more(house.learner(), BATCH)  # a successor whose clock is right
    house.assert_accounted(house.sent)
    house.assert_sound()
    events = house.board.events()
    assert [event.event_id for event in events] == sorted((event.event_id for event in events), key=place)
    seen, acked = house.board.heartbeats()["learner:killable"], house.buffer.counts().acked
    assert {outcome: seen[outcome] for outcome in acked} == acked


@both_ways
def test_a_lease_outlives_its_holders_clock_and_keeps_others_out(house, seconds):
    house.send(BATCH)
    holder, other = house.learner(LEARNER="holder", ROUND_LEASE_S="60"), house.learner(LEARNER="other")
    holder.order("arm", point="before_training", how="pause")
    assert house.round(holder) == {"at": "before_training"}
    holder.order("skew", seconds=seconds)
    other.order("skew", seconds=-seconds)
    assert other.round()["why"] == "another learner of default is at work"
    assert holder.go_on()["kind"] == "learned"
    house.assert_accounted(house.sent)


def put_canary(house):
    """A version on the board that drafts on one of two replicas, undecided."""
    live = house.board.read().rows[0].version
    number = house.board.next_number()
    house.board.register(
        DraftVersion(number, 0, "target", "1", "eagle3", live.weights_uri, live.sha256, "soft", ("", "")), "ada", "try"
    )
    house.board.move(number, VersionState.CANARY, "ada", "try it", "a")
    return number


@both_ways
def test_a_canary_has_its_time_whatever_the_clock_says(house, seconds):
    learner = house.learn(BATCH, HOLDOUT_REQUESTS="240")
    number = put_canary(house)
    learner.order("skew", seconds=seconds)
    assert learner.round()["why"].startswith(f"version {number} is canary")
    learner.order("skew", seconds=-seconds)
    assert learner.round()["why"].startswith(f"version {number} is canary")
    assert house.board.read().canary == number
    house.board.roll_back("ada", "enough", number)
    house.learn_more(learner, BATCH)
    house.assert_accounted(house.sent)


@both_ways
def test_a_canary_that_nobody_decides_ends_whatever_the_clock_says(house, seconds):
    house.learn(BATCH, HOLDOUT_REQUESTS="240").end()
    number = put_canary(house)
    learner = house.learner(CANARY_LIMIT_S="0.2", HOLDOUT_REQUESTS="240")
    learner.order("skew", seconds=seconds)
    house.send(BATCH)
    until(lambda: learner.round() and house.board.read().canary is None, "the overdue canary to be taken off")
    assert house.board.read().rows[number].state is VersionState.ROLLED_BACK
    house.learn_all(learner)
    house.assert_accounted(house.sent)
