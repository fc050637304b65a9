"""kill -9 of the real server around a swap: the next one serves what the board says, whole, and no trace comes twice.

What dies with a whole tree are the windows of requests that ran, and of those that had just ended: its successor counts
them. A scheduler process that dies alone takes nothing along that its courier has: the courier closes and delivers
every window.
"""

from pathlib import Path

import numpy as np
import pytest
from paceline.buffer.version import VersionState
from paceline.buffer.weights_file import weights_file
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from waiting import until

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).with_name("killable_server.py")
#: In the order in which one server's life follows the other; each ends where the next one begins.
POINTS = ("between_announcement_and_swap", "half_way_through_a_swap", "half_way_through_a_roll_back", "none")
SCHEDULER_ALONE = "half_way_through_a_swap"
CROWD, TOKENS = 6, 40
#: Of requests that are to run still when the server dies, and of the answers their beginnings are compared with.
LONG, KNOWN = 800, 200
REPLAYED_ROUNDS = 4  # of a trace; the oracle takes a tenth of a second for one


def crowd(house, name, tokens=TOKENS):
    return [(f"{name}-{i}", house.texts[i][100:260], tokens) for i in range(CROWD)]


@pytest.fixture(scope="module")
def plain(house):
    """What the server answers before anything was swapped or killed, by place."""
    house.publish(seed=0, number=0)
    house.board.move(0, VersionState.LIVE, "test", "served from the start")
    house.ensure(POINTS[0])
    return house.answers(crowd(house, "plain", KNOWN))


def announced(house, point):
    """Do what the server dies of; the version that the board holds as live then."""
    if point == "half_way_through_a_roll_back":
        return house.board.roll_back("test", "worse").live
    number = house.publish(seed=10 + len(house.board.read().rows))
    house.board.move(number, VersionState.LIVE, "test", "better")
    return number


@pytest.mark.guarantee("server-killed")
@pytest.mark.parametrize("point", POINTS[:-1])
def test_a_server_killed_here_comes_back_with_the_boards_version_whole(house, plain, naive_draft, point):
    house.ensure(point)
    assert house.answers(crowd(house, f"before-{point}")) == [answer[:TOKENS] for answer in plain]
    known = house.drained()
    with house.asking(crowd(house, f"during-{point}", LONG)):
        until(lambda: house.status().get("open", 0) == CROWD, "all requests to run")
        number, written = announced(house, point), house.board.events()
        last = last_words(house, point)
    house.ensure(POINTS[POINTS.index(point) + 1])
    assert house.board.events() == written  # nobody moved anything: neither the dying server nor its successor
    assert house.board.read().live == house.status()["draft_version"] == number
    assert house.answers(crowd(house, f"after-{point}")) == [answer[:TOKENS] for answer in plain]
    told = house.drained()
    served = {name: traces_of(house, f"{name}-{point}") for name in ("before", "during", "after")}
    for name in ("before", "after"):
        assert_served_once(house, served[name], f"{name}-{point}")
    assert {trace.draft_version for traces in served["after"].values() for trace in traces} == {number}
    assert_drafted_by(house, naive_draft, served["after"], number)
    assert_prefixes_of(plain, served["during"])
    held = last["captured"] - last["delivered"] - sum(last["dropped"].values())
    assert held == (0 if point == SCHEDULER_ALONE else CROWD)
    assert told["dropped"].get("server_died", 0) == known["dropped"].get("server_died", 0) + held
    if point == SCHEDULER_ALONE:
        assert (last["open"], last["queued"], last["captured"]) == (0, 0, known["captured"] + CROWD)
        assert last["captured"] == last["delivered"] + sum(last["dropped"].values())
        assert len(served["during"]) == CROWD


def last_words(house, point):
    """The last reading of a replica whose server dies now; of a courier that lives on, the one behind its last turn."""
    said = []

    def is_over():
        said.extend(filter(None, [house.status()]))  # it is forgotten soon
        return house.has_died() and (point != SCHEDULER_ALONE or said[-1]["open"] == 0)

    until(is_over, "the server to die")
    return said[-1]


def traces_of(house, name):
    """Request id -> its traces, in the order of their windows."""
    found = {}
    for trace in house.traces():
        if trace.request_id.rpartition("-")[0] == name:
            found.setdefault(trace.request_id, []).append(trace)
    return {rid: sorted(traces, key=lambda trace: trace.offset + trace.context_len) for rid, traces in found.items()}


def committed(traces):
    return [token for trace in traces for token in trace.tokens[trace.context_len :].tolist()]


def assert_served_once(house, served, name):
    """Every request that was answered stands in the buffer once, as it was answered."""
    assert {rid: committed(traces) for rid, traces in served.items()} == {
        rid: answer for rid, answer in house.calls.items() if rid.rpartition("-")[0] == name
    }
    assert len(served) == CROWD


def assert_prefixes_of(plain, served):
    """What is there of requests cut off by a death is their beginning, once, and true."""
    for rid, traces in served.items():
        tokens, known = committed(traces), plain[int(rid.rpartition("-")[2])]
        assert tokens[:KNOWN] == known[: len(tokens)], rid


def assert_drafted_by(house, naive_draft, served, number):
    """Drafts in the traces are those of version `number`, decoded anew by a slow oracle, and not of another."""
    rows = house.board.read().rows
    embedding = load_target_embedding(house.target)
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
            told, _ = naive_draft(draft, trace.tokens, trace.features, int(start), len(drafted))
            equal += np.equal(told, drafted).tolist()
    assert len(equal) == 3 * REPLAYED_ROUNDS * 3
    return float(np.mean(equal))


def test_the_script_knows_these_points_and_no_others():
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert [line.split('"')[1] for line in lines if '": Death(' in line] == list(POINTS[:-1])
