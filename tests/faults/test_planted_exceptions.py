"""An exception in any hook body or handler costs no token: the server answers as it did before, and nothing is lost."""

import pytest
from matrix import cases
from paceline.buffer.board.version import VersionState
from planted_server import PACED, PLANTS, SWAPS
from waiting import until

pytestmark = pytest.mark.servers

REQUESTS = 4
TOKENS = 24
#: One of capture and one of swaps.
EVERYDAY = ("the verify hook", "the handler of swap commands")


def jobs(replica, label):
    return [(f"{label}-{i}", replica.texts[i][:150], TOKENS) for i in range(REQUESTS)]


def assert_it_costs_no_token(replica, name):
    """While `name` raises, and afterwards, the answers are those before; what it costs is counted."""
    replica.ensure_running()
    plain = replica.answers(jobs(replica, f"{name}-plain"))
    assert all(len(tokens) == TOKENS for tokens in plain)
    before = replica.drained()
    hit = replica.folder / "point.hit"
    hit.unlink(missing_ok=True)
    with replica.dying_at(name):
        if name in SWAPS:
            wanted = replica.publish(seed=100 + len(name))
            replica.board.move(wanted, VersionState.LIVE, "test", name)
        answers = replica.answers(jobs(replica, f"{name}-during"))
        until(hit.exists, f"the exception in {name}")
    assert answers == plain
    assert replica.answers(jobs(replica, f"{name}-after")) == plain
    if name in SWAPS:  # refused or timed out, and the version before it serves on, or it was tried again
        until(replica.follows_the_board, "the server to draft with the live version")
    after = replica.drained()
    assert (after.capture, after.swap) == ("on", "on")
    # Of the eight requests, those that met the exception are lost and counted, and the others are delivered.
    captured = after.account.captured - before.account.captured
    lost = sum(after.account.dropped.values())
    assert after.account.delivered - before.account.delivered >= REQUESTS
    assert captured == after.account.delivered - before.account.delivered + lost - sum(before.account.dropped.values())


@pytest.mark.guarantee("no-exception-reaches-sglang")
@pytest.mark.parametrize("name", cases([name for name in PLANTS if name != PACED], everyday=EVERYDAY))
def test_an_exception_planted_into_a_hook_or_handler_leaves_every_token_as_it_was(replica, name):
    assert_it_costs_no_token(replica, name)


@pytest.mark.guarantee("no-exception-reaches-sglang")
@pytest.mark.fault_matrix  # tests/serving/test_adaptive_policy.py has the same of the policy alone
def test_an_exception_in_pacing_costs_no_token_and_the_server_says_that_pacing_ended_and_why(
    models, start_replica, tmp_path
):
    with start_replica(tmp_path, models, more_flags=("--speculative-adaptive",)) as paced:
        assert_it_costs_no_token(paced, PACED)
        until(lambda: paced.status().pacing.faults > 0, "the fault of pacing in the heartbeat")
        assert f"planted in {PACED}" in paced.status().pacing.reason
