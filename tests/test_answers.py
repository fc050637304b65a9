"""`paceline status`, `alarms`, `versions`, `doctor` and acts that wait, against a real Redis with real beats."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from fleet import counted, publish, requests, version
from paceline.buffer.board.member_status import MemberStatus, TracesSaid
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from paceline.buffer.config import BufferConfig
from paceline.cli import app
from said import said
from typer.testing import CliRunner, Result
from waiting import until

#: Beats as a server does until it is killed. Its heartbeat lasts three seconds, a server's ten.
BEATS = """
import sys, time
from paceline.buffer.config import BufferConfig
from paceline.buffer.board.counters import Counters
from paceline.buffer.board.member_status import MemberStatus, TracesSaid
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.redis_client import connect

board = RedisVersionBoard(connect(sys.argv[1], timeout_s=30.0), BufferConfig())
while True:
    now = time.time()
    said = MemberStatus(draft_version=1, traces=TracesSaid(captured=3, delivered=3), capture="on", at=now)
    said.counters = Counters(at=now, boot="b")
    board.beat(sys.argv[2], said, 3.0)
    time.sleep(0.2)
"""


@pytest.fixture
def environment(redis_url, monkeypatch):
    monkeypatch.delenv("PACELINE_OPERATOR_TOKEN", raising=False)
    return {"PACELINE_REDIS_URL": redis_url, "PACELINE_SPECULATOR": "default", "COLUMNS": "200"}


@pytest.fixture
def paceline(redis_client, environment):
    """Run `paceline <words>`."""

    def run(*words: str, **more: str) -> Result:
        return CliRunner().invoke(app, words, env=environment | more)

    return run


@pytest.fixture
def board(redis_client, tmp_path) -> RedisVersionBoard:
    """Version 0 retired, 1 live, 2 a candidate; all with the same weights."""
    file = tmp_path / WEIGHTS_FILE
    file.write_bytes(b"weights")
    board = RedisVersionBoard(redis_client, BufferConfig())
    published = {"weights_uri": tmp_path.as_uri(), "sha256": sha256_of(file)}
    publish(board, 0, 1, why="won the gate", **published)
    board.register(version(2, **published), "learner", "trained")
    return board


@pytest.fixture
def server(redis_url):
    """A process that beats as replica:a."""
    with subprocess.Popen([sys.executable, "-c", BEATS, redis_url, "replica:a"]) as process:
        yield process
        process.kill()


def answers(result: Result) -> dict[str, str]:
    return {one["topic"]: one["level"] for one in json.loads(result.stdout)["answers"]}


@pytest.mark.guarantee("alarm-member-silent")
def test_a_killed_server_is_said_by_status_and_alarms_and_nothing_stays_well(paceline, board, server):
    until(lambda: paceline("alarms").exit_code == 0, "the first beat")
    alive = paceline("status", "--json")
    assert (alive.exit_code, answers(alive)["alarms"], answers(alive)["fresh"]) == (2, "ok", "ok")
    server.send_signal(signal.SIGKILL)
    server.wait()
    killed_at = time.monotonic()
    until(lambda: paceline("alarms").exit_code == 1, "the alarm", limit_s=15.0)
    assert time.monotonic() - killed_at < 15.0
    shown = paceline("alarms")
    assert "member_silent" in shown.output
    assert "1 thing is wrong: replica:a: member_silent, not seen for" in shown.output
    dead = paceline("status", "--json")
    assert (dead.exit_code, set(answers(dead).values())) == (1, {"unknown", "wrong"})
    assert json.loads(dead.stdout)["members"][0]["presence"] == "silent"
    assert "no server is alive: nothing drafts with the live version" in paceline("versions").output


def test_a_member_that_is_gone_for_good_is_forgotten_once_it_is_silent(paceline, board):
    board.beat("replica:a", MemberStatus(draft_version=1, traces=TracesSaid(captured=4)), 60.0)
    refused = paceline("forget", "replica:a")
    assert (refused.exit_code, "got one that is alive" in refused.stderr) == (1, True)
    board.beat("replica:a", MemberStatus(draft_version=1, traces=TracesSaid(captured=4)), 0.001)
    until(lambda: paceline("alarms").exit_code == 1, "the silence")
    beaten_at = board.members()["replica:a"].last_seen_at
    for _ in range(2):  # the second time changes nothing
        assert paceline("forget", "replica:a").exit_code == 0
        assert board.members()["replica:a"].last_seen_at == beaten_at
    assert json.loads(paceline("status", "--json").stdout)["members"][0]["presence"] == "ended"
    assert paceline("alarms").exit_code == 2  # nobody is left to say
    assert board.last_status("replica:a").account.captured == 4  # for the next server of that name
    assert "expected one of replica:a" in paceline("forget", "replica:b").stderr
    board.beat("replica:a", MemberStatus(draft_version=1), 60.0)
    assert paceline("alarms").exit_code == 0


@pytest.mark.guarantee("alarm-member-silent")
@pytest.mark.parametrize("words", [("status",), ("alarms",), ("versions",), ("audit",), ("versions", "show", "1")])
def test_without_redis_nothing_can_be_told(paceline, words):
    gone = paceline(*words, PACELINE_REDIS_URL="redis://127.0.0.1:9/0")
    assert (gone.exit_code, gone.stdout) == (2, "")
    assert "start Redis or correct PACELINE_REDIS_URL" in gone.stderr


def test_of_a_speculator_that_nobody_has_seen_nothing_can_be_told(paceline, board):
    for command in ("status", "alarms", "audit", "explain", "versions"):
        unseen = paceline(command, "--speculator", "nobody")
        assert (unseen.exit_code, "got nobody, of which Redis has no board" in unseen.stderr) == (2, True)
        assert "expected one of default there or in --speculator" in unseen.stderr


def test_alarms_as_json_are_one_object_a_line(paceline, board):
    alarm = {"name": "hook_silent", "figures": {"rounds": 200}, "action": "tell"}
    board.beat(
        "replica:a", said({"draft_version": 1, "standing_alarms": [alarm], "alarms": [alarm | {"at": 9.0}]}), 60.0
    )
    shown = paceline("alarms", "--json")
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(line["alarm"], line["active"], line["at"]) for line in lines] == [
        ("hook_silent", True, None),
        ("hook_silent", False, 9.0),
    ]


def served(board):
    """Two drafts, of which the second had more accepted."""
    cells = requests(0, "py", [(10, 5), (9, 4)] * 5), requests(1, "py", [(10, 12), (9, 11)] * 5)

    board.beat("replica:a", MemberStatus(draft_version=1, counters=counted(time.time(), *cells)), 60.0)


def test_versions_show_what_was_served_beside_what_was_predicted(paceline, board):
    served(board)
    rows = [json.loads(line) for line in paceline("versions", "--json").stdout.splitlines()]
    assert [row["served_accept_length"] for row in rows] == [
        pytest.approx(1 + 9 / 19),
        pytest.approx(1 + 23 / 19),
        None,
    ]
    assert rows[1]["prediction_error"] == pytest.approx(1 + 23 / 19 - 3.0)
    table = paceline("versions", "--newest", "2").output
    assert [
        word for word in ("served", "95 %", "predicted", "error", "and 1 older: --newest 3") if word not in table
    ] == []


def test_two_versions_and_one_in_full(paceline, board):
    served(board)
    compared = paceline("versions", "--compare", "0", "1")
    assert (compared.exit_code, "draft 1 against draft 0: +0.74 (" in compared.output) == (0, True)
    gap = json.loads(paceline("versions", "--compare", "0", "1", "--json").stdout)["difference"]
    assert gap["value"] == pytest.approx(14 / 19)
    assert gap["low"] < gap["value"] < gap["high"]
    card = paceline("versions", "show", "1")
    assert (card.exit_code, "won the gate" in card.output) == (0, True)
    assert json.loads(paceline("versions", "show", "1", "--json").stdout)["served"]["py"]["requests"] == 10
    unknown = paceline("versions", "show", "9")
    assert (unknown.exit_code, "expected one of [0, 1, 2]" in unknown.stderr) == (1, True)


def test_a_promotion_says_which_servers_have_not_taken_it(paceline, board):
    board.beat("replica:a", MemberStatus(draft_version=2), 60.0)
    board.beat("replica:b", MemberStatus(draft_version=1), 60.0)
    late = paceline("promote", "2", "--wait", "0.1")
    assert (late.exit_code, board.read().live) == (1, 2)
    assert late.output.splitlines() == [
        "version 2 is live on the board",
        "replica:a drafts with version 2",
        "replica:b does not: it drafts with 1",
    ]
    board.beat("replica:b", MemberStatus(draft_version=1), 60.0)
    back = paceline("rollback", "--expect", "7")
    assert (back.exit_code, board.read().live) == (1, 2)
    assert "expected 7 to be one of them" in back.stderr
    assert (paceline("rollback", "--expect", "2").exit_code, board.read().live) == (0, 1)


def test_watching_ends_well_with_ctrl_c(environment, board, redis_url):
    board.beat("replica:a", MemberStatus(draft_version=1), 60.0)
    command = [sys.executable, "-m", "paceline.cli", "status", "--watch", "--json"]
    env = {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        first = json.loads(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate()
    assert (watching.returncode, errors, first["speculator"]) == (0, "", "default")
