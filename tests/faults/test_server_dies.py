"""kill -9 of the real server around a swap: the next one serves what the board says, whole, and no trace comes twice.

When all of its processes die, the windows of requests that run, or have just ended, die too: the next server counts
them. When the scheduler process dies alone, its courier closes and delivers every window.
"""

import numpy as np
import pytest
from killable_server import POINTS
from matrix import cases
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import weights_file
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

#: All processes die, with half of the weights copied.
EVERYDAY = "half_way_through_a_roll_back"
CROWD = 6
TOKENS = 40
#: Of requests that still run when the server dies, and of the answers their beginnings are compared with.
LONG = 800
KNOWN = 200
REPLAYED_ROUNDS = 4  # of a trace; the oracle takes a tenth of a second for one


def crowd(replica, name, tokens=TOKENS):
    return [(f"{name}-{i}", replica.texts[i][100:260], tokens) for i in range(CROWD)]


@pytest.fixture(scope="module")
def plain(replica):
    """What the server answers before anything was killed, by position."""
    replica.ensure_running()
    return replica.answers(crowd(replica, "plain", KNOWN))


def make_new_version_live(replica):
    number = replica.publish(seed=10 + len(replica.board.read().rows))
    replica.board.move(number, VersionState.LIVE, "test", "better")
    return number


def announce(replica, point):
    """Do what the server dies of; the version that the board then holds as live."""
    if point == "half_way_through_a_roll_back":
        return replica.board.roll_back("test", "worse").live
    return make_new_version_live(replica)


@pytest.mark.guarantee("server-killed")
@pytest.mark.parametrize("point", cases(POINTS, everyday=[EVERYDAY]))
def test_a_server_killed_here_comes_back_with_the_boards_version_whole(replica, plain, naive_draft, point):
    make_new_version_live(replica)
    replica.ensure_running()
    assert replica.answers(crowd(replica, f"before-{point}")) == [answer[:TOKENS] for answer in plain]
    known = replica.drained()
    with replica.dying_at(point), replica.asking(crowd(replica, f"during-{point}", LONG)):
        until(lambda: replica.status().open == CROWD, "all requests to run")
        number = announce(replica, point)
        written = replica.board.events()
        last = last_status(replica, point)
    replica.ensure_running()
    assert replica.board.events() == written  # neither the dying server nor its successor moved a version
    assert replica.board.read().live == replica.status().draft_version == number
    assert replica.answers(crowd(replica, f"after-{point}")) == [answer[:TOKENS] for answer in plain]
    status = replica.drained()
    served = {name: traces_of(replica, f"{name}-{point}") for name in ("before", "during", "after")}
    for name in ("before", "after"):
        assert_served_once(replica, served[name], f"{name}-{point}")
    assert {trace.draft_version for traces in served["after"].values() for trace in traces} == {number}
    assert_drafted_by(replica, naive_draft, served["after"], number)
    assert_prefixes_of(plain, served["during"])
    held = last.account.captured - last.account.delivered - sum(last.account.dropped.values())
    assert held == (CROWD if POINTS[point].is_whole_tree else 0)
    assert status.account.dropped.get("server_died", 0) == known.account.dropped.get("server_died", 0) + held
    if not POINTS[point].is_whole_tree:
        assert (last.open, last.queued, last.account.captured) == (0, 0, known.account.captured + CROWD)
        assert last.account.captured == last.account.delivered + sum(last.account.dropped.values())
        assert len(served["during"]) == CROWD


def last_status(replica, point):
    """The last status of a replica whose server dies now; of a courier that lives on, the one after its last turn."""
    seen = []

    def is_over():
        seen.extend(said for said in [replica.status()] if said.boot)  # it expires soon
        return replica.has_died() and (POINTS[point].is_whole_tree or seen[-1].open == 0)

    until(is_over, "the server to die")
    return seen[-1]


def traces_of(replica, name):
    """Request id -> its traces, in the order of their windows."""
    found = {}
    for trace in replica.traces():
        if trace.request_id.rpartition("-")[0] == name:
            found.setdefault(trace.request_id, []).append(trace)
    return {rid: sorted(traces, key=lambda trace: trace.offset + trace.context_len) for rid, traces in found.items()}


def committed(traces):
    return [token for trace in traces for token in trace.tokens[trace.context_len :].tolist()]


def assert_served_once(replica, served, name):
    """Every request that was answered is in the buffer once, as it was answered."""
    assert {rid: committed(traces) for rid, traces in served.items()} == {
        rid: answer for rid, answer in replica.calls.items() if rid.rpartition("-")[0] == name
    }
    assert len(served) == CROWD


def assert_prefixes_of(plain, served):
    """What is delivered of requests cut off by a death is the beginning of their answers, once."""
    for rid, traces in served.items():
        tokens = committed(traces)
        known = plain[int(rid.rpartition("-")[2])]
        assert tokens[:KNOWN] == known[: len(tokens)], rid


def assert_drafted_by(replica, naive_draft, served, number):
    """Drafts in the traces are those of version `number`, decoded again by a slow oracle, and not of another."""
    rows = replica.board.read().rows
    embedding = load_target_embedding(replica.target)
    shares = {}
    for version in {number, max(rows) if number < max(rows) else number - 1}:
        draft = load_draft(weights_file(rows[version].version.weights_uri).parent, embedding)
        shares[version] = share_drafted(draft, naive_draft, served)
    # Rounding may decide between two drafts that are all but equally likely.
    assert shares.pop(number) >= 0.95
    assert all(share < 0.5 for share in shares.values())


def share_drafted(draft, naive_draft, served):
    equal = []
    for traces in list(served.values())[:3]:
        trace = traces[0]
        assert trace.replay_exact
        for drafted, start in list(zip(trace.rounds.drafted, trace.rounds.starts, strict=True))[:REPLAYED_ROUNDS]:
            expected, _ = naive_draft(draft, trace.tokens, trace.features, int(start), len(drafted))
            equal += np.equal(expected, drafted).tolist()
    assert len(equal) == 3 * REPLAYED_ROUNDS * 3
    return float(np.mean(equal))
