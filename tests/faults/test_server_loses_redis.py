"""kill -9 of Redis, which comes back without its data, under a real server: no token is lost, and the loop goes on."""

import numpy as np
import pytest
from paceline.buffer.version import VersionState
from paceline.buffer.weights_file import weights_file
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from waiting import until

pytestmark = pytest.mark.e2e

CROWD, TOKENS = 6, 40


def crowd(house, name, at=100):
    return [(f"{name}-{i}", house.texts[i][at : at + 160], TOKENS) for i in range(CROWD)]


@pytest.fixture
def served(house):
    """A server that drafts with a version the board has given a number above zero; that number."""
    house.ensure("none")
    if house.board.read().live is None:
        house.publish(seed=0, number=0)
        house.board.move(0, VersionState.LIVE, "test", "served from the start")
    number = house.publish(seed=1)
    house.board.move(number, VersionState.LIVE, "test", "better")
    until(house.follows_the_board, "the swap")
    return number


@pytest.mark.guarantee("server-loses-redis")
def test_a_redis_that_lost_its_data_costs_no_token_and_the_next_version_is_swapped_in(house, served, naive_draft):
    plain = house.answers(crowd(house, "calm"))
    before = house.drained()
    with house.asking(crowd(house, "gone")) as asked:
        house.lose_redis()
    assert [answer.result() for answer in asked] == plain
    until(house.is_well, "the replica to find Redis again")
    assert house.board.read().rows == {}
    assert house.answers(crowd(house, "found")) == plain
    after = house.drained()
    assert after["draft_version"] == served
    assert (after["captured"], after["dropped"]) == (before["captured"] + 2 * CROWD, before["dropped"])
    delivered = [trace.request_id for trace in house.traces()]
    assert sorted(rid for rid in delivered if rid.startswith("found")) == [f"found-{i}" for i in range(CROWD)]
    assert_the_new_board_is_followed(house, naive_draft, again=served)


def assert_the_new_board_is_followed(house, naive_draft, again):
    """The new board counts from zero: under a number the server has seen lie other weights now."""
    house.publish(seed=0, number=0)
    house.board.move(0, VersionState.LIVE, "learner", "served from the start")
    until(house.follows_the_board, "the draft of the beginning")
    while (number := house.publish(seed=2)) < again:
        pass
    house.board.move(number, VersionState.LIVE, "learner", "better")
    until(house.follows_the_board, "the swap on the new board")
    house.answers(crowd(house, "anew", at=400))
    house.drained()
    traces = [trace for trace in house.traces() if trace.request_id.startswith("anew") and trace.replay_exact]
    assert {trace.draft_version for trace in traces} == {again}
    weights = weights_file(house.board.read().rows[again].version.weights_uri)
    draft = load_draft(weights.parent, load_target_embedding(house.target))
    equal = []
    for trace in traces[:3]:
        drafted, start = trace.rounds.drafted[0], int(trace.rounds.starts[0])
        told, _ = naive_draft(draft, trace.tokens, trace.features, start, len(drafted))
        equal += np.equal(told, drafted).tolist()
    assert np.mean(equal) >= 0.8  # rounding may decide between two drafts that are all but equally likely
