"""An exception in any hook body or handler costs no token: the server answers as it did before, and nothing is lost."""

from pathlib import Path

import pytest
from matrix import cases
from paceline.buffer.board.version import VersionState
from planted_server import PLANTS, SWAPS
from waiting import until

SCRIPT = Path(__file__).with_name("planted_server.py")
REQUESTS = 4
TOKENS = 24
#: One of capture, one of swaps, and the one of pacing.
EVERYDAY = ("the verify hook", "the handler of swap commands", "the hook of a forward")


@pytest.fixture(scope="module")
def planted(models, start_replica, tmp_path_factory):
    """A paced replica into which exceptions can be planted."""
    folder = tmp_path_factory.mktemp("planted")
    with start_replica(folder, models, script=SCRIPT, more_flags=("--speculative-adaptive",)) as made:
        yield made


@pytest.fixture(scope="module")
def plain(planted):
    """What it answers before anything is planted."""
    answers = planted.answers(jobs(planted, "plain"))
    assert all(len(tokens) == TOKENS for tokens in answers)
    return answers


def jobs(replica, label):
    return [(f"{label}-{i}", replica.texts[i][:150], TOKENS) for i in range(REQUESTS)]


@pytest.mark.guarantee("no-exception-reaches-sglang")
@pytest.mark.parametrize("name", cases(PLANTS, everyday=EVERYDAY))
def test_an_exception_planted_into_a_hook_or_handler_leaves_every_token_as_it_was(planted, plain, name):
    before = planted.drained()
    hit = planted.folder / "point.hit"
    hit.unlink(missing_ok=True)
    with planted.dying_at(name):
        if name in SWAPS:
            wanted = planted.publish(seed=len(name))
            planted.board.move(wanted, VersionState.LIVE, "test", name)
        answers = planted.answers(jobs(planted, f"{name}-during"))
        until(hit.exists, f"the exception in {name}")
    assert answers == plain
    assert planted.answers(jobs(planted, f"{name}-after")) == plain
    if name in SWAPS:  # refused or timed out, and the version before it serves on, or it was tried again
        until(planted.follows_the_board, "the server to draft with the live version")
    after = planted.drained()
    assert (after.capture, after.swap) == ("on", "on")
    # Of the eight requests, those that met the exception are lost and counted, and the others are delivered.
    captured = after.account.captured - before.account.captured
    lost = sum(after.account.dropped.values())
    assert after.account.delivered - before.account.delivered >= REQUESTS
    assert captured == after.account.delivered - before.account.delivered + lost - sum(before.account.dropped.values())


def test_the_paced_server_said_that_pacing_ended_and_why(planted, plain):
    until(lambda: planted.status().pacing.faults > 0, "the fault of pacing in the heartbeat")
    assert "planted in the hook of a forward" in planted.status().pacing.reason
