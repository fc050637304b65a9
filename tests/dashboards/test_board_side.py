"""The board's side of `paceline doctor`: each line well, wrong or not to be told, and what to do."""

import hashlib
import json
from dataclasses import replace

import odd_stores
import pytest
from fleet import NOW, board, counted, learner, publish, replica, snapshot
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.finding import Finding, Level
from paceline.buffer.settings.sources import read_settings
from paceline.buffer.stream.redis_room import RedisRoom, read_room
from paceline.dashboards.doctor.board_side import examine_board, mlflow
from paceline.dashboards.doctor.members_side import beats, clocks, room_for_traffic, servers
from paceline.dashboards.doctor.redis_side import _too_old, connection
from paceline.dashboards.doctor.report import say_findings


def sha256_of_text(text, letters=16):
    return hashlib.sha256(text.encode()).hexdigest()[:letters]


SUPPORTED = ("0.5.23", "0.5.22")


def found(environ, aliases=None):
    return {
        one.topic: one
        for one in examine_board(read_settings(environ), None, speculator=None, supported=SUPPORTED, aliases=aliases)
    }


def test_without_a_url_it_is_said_what_to_set():
    findings = found({})
    assert findings["Redis"].sentence == "PACELINE_REDIS_URL is not set: servers capture nothing"
    assert [*findings] == ["Redis"]


def test_a_redis_that_does_not_answer_is_wrong():
    findings = found({"PACELINE_REDIS_URL": "redis://127.0.0.1:9/0"})
    assert findings["Redis"].level is Level.WRONG
    assert "start Redis or correct PACELINE_REDIS_URL" in findings["Redis"].sentence


@pytest.mark.parametrize(
    ("room", "problem"),
    [
        (RedisRoom(0, "noeviction", 10, is_append_only=True), ""),
        (RedisRoom(1200, "noeviction", 10, is_append_only=True), ""),
        (RedisRoom(1199, "noeviction", 10, is_append_only=True), "got maxmemory 1199, expected at least 1200"),
        (RedisRoom(9999, "allkeys-lru", 10, is_append_only=True), "got maxmemory-policy allkeys-lru, expected noevict"),
    ],
)
def test_room_in_redis(room, problem):
    assert room.problem(1000).startswith(problem)
    assert bool(room.problem(1000)) is bool(problem)


def test_a_real_redis_is_asked_for_its_room_and_the_live_version(redis_client, redis_url, tmp_path):
    environ = {"PACELINE_REDIS_URL": redis_url}
    assert read_room(redis_client).max_bytes == 0
    assert found(environ)["weights"].sentence.startswith("no version is live yet")
    assert {one.level for one in found(environ).values()} <= {Level.OK, Level.NOTE}  # a board that is not used yet
    board = RedisVersionBoard(redis_client, BufferConfig())
    publish(board, 0, weights_uri=(tmp_path / "gone").as_uri())
    findings = found(environ)
    assert findings["weights"].level is Level.WRONG
    assert "this machine cannot swap to the live version: version 0: got no readable" in findings["weights"].sentence
    redis_client.config_set("maxmemory", "1mb")
    try:
        (wrong,) = [
            one
            for one in examine_board(read_settings(environ), None, speculator=None, supported=SUPPORTED, aliases=None)
            if one.level is Level.WRONG and one.topic == "Redis"
        ]
        assert "got maxmemory 1048576, expected at least" in wrong.sentence
    finally:
        redis_client.config_set("maxmemory", "0")


def test_a_store_is_looked_into_with_the_credentials_of_this_machine(redis_client, redis_url, tmp_path):
    from paceline.buffer.board.stored_weights import put

    odd_stores.register()
    name = f"doctor-{sha256_of_text(str(tmp_path))}"
    environ = {"PACELINE_REDIS_URL": redis_url, "PACELINE_VERSIONS_URI": f"memory://{name}"}
    assert "store" not in found({"PACELINE_REDIS_URL": redis_url})
    assert found(environ)["store"].level is Level.NOTE
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    put([tmp_path / "model.safetensors"], f"memory://{name}/default/v0")
    publish(
        RedisVersionBoard(redis_client, BufferConfig()),
        0,
        weights_uri=f"memory://{name}/default/v0",
        sha256=sha256_of_text("weights", 64),
    )
    findings = found(environ)
    assert findings["store"] == Finding("store", Level.OK, f"memory://{name}/default can be listed; versions there: 1")
    assert findings["weights"].sentence.endswith(f"can be read at memory://{name}/default/v0/model.safetensors")
    expired = found(environ | {"PACELINE_VERSIONS_URI": f"expired://{name}"})["store"]
    assert expired.level is Level.WRONG
    assert "got PermissionError: The provided token has expired., expected to list it" in expired.sentence


@pytest.mark.guarantee("zero-retention")
@pytest.mark.parametrize(
    ("mode", "save", "level"), [("memory", "", Level.OK), ("memory", "60 1", Level.WRONG), ("disk", "60 1", None)]
)
def test_a_redis_that_writes_to_its_disk_is_wrong_where_nothing_may_reach_one(
    redis_client, redis_url, mode, save, level
):
    redis_client.config_set("save", save)
    try:
        findings = found({"PACELINE_REDIS_URL": redis_url, "PACELINE_RETENTION": mode})
    finally:
        redis_client.config_set("save", "")
    assert findings["Redis"].sentence.startswith("forgets board and traces") == (mode == "disk")
    assert (findings["retention"].level if level else None) is level
    assert ("retention" in findings) == (mode == "memory")


def test_a_token_on_the_board_is_seen(redis_client, redis_url):
    from paceline.buffer.board.redis_operator import OperatorAuth

    environ = {"PACELINE_REDIS_URL": redis_url}
    assert found(environ)["token"].level is Level.NOTE
    OperatorAuth(redis_client, BufferConfig()).set_token("a token of some length", None, "me", "hardening")
    assert found(environ)["token"].level is Level.OK


@pytest.mark.parametrize(
    ("url", "level"),
    [
        ("rediss://far.example:6380/0", Level.OK),
        ("redis://127.0.0.1:6379/0", Level.OK),
        ("unix:///run/redis.sock", Level.OK),
        ("redis://user:hunter2@far.example:6379/0", Level.NOTE),
        ("sentinel://127.0.0.1:26379,localhost:26380/traces", Level.OK),
        ("sentinel://user:hunter2@127.0.0.1:26379,far.example:26379/traces", Level.NOTE),
        ("sentinels://far.example:26379/traces", Level.OK),
    ],
)
def test_an_open_connection_to_another_machine_is_noted(url, level):
    finding = connection(url)
    assert finding.level is level
    assert "hunter2" not in finding.sentence


@pytest.mark.parametrize(("version", "is_old"), [("6.2.14", False), ("7.0.0", False), ("6.0.16", True), ("odd", False)])
def test_an_old_redis_is_refused(version, is_old):
    assert bool(_too_old(version)) == is_old


@pytest.mark.parametrize(
    ("release", "level", "said"),
    [
        ("0.5.23", Level.OK, "1 alive, SGLang supported"),
        ("0.6.0", Level.WRONG, "replica:a runs SGLang 0.6.0; supported are 0.5.23, 0.5.22"),
        ("", Level.NOTE, "replica:a do not say which SGLang they run"),
    ],
)
def test_servers_run_a_release_that_was_tried(release, level, said):
    finding = servers(snapshot(replica_a=replica(server={"sglang": release})), SUPPORTED)
    assert finding.level is level
    assert said in finding.sentence


def test_what_is_not_there_is_noted_and_not_wrong():
    empty = snapshot(board(0))
    findings = [servers(empty, SUPPORTED), clocks(empty), beats(empty), room_for_traffic(empty, 1)]
    assert {finding.level for finding in findings} == {Level.NOTE}


@pytest.mark.parametrize(("ahead_s", "level"), [(1.9, Level.OK), (2.0, Level.WRONG), (-30.0, Level.WRONG)])
def test_clocks_agree_with_redis(ahead_s, level):
    one = replica()
    one.said.at = one.last_seen_at + ahead_s
    finding = clocks(snapshot(replica_a=one))
    assert finding.level is level
    assert (f"replica:a by {ahead_s:+.0f} s" in finding.sentence) == (level is Level.WRONG)


@pytest.mark.parametrize(
    ("flags", "level"), [((True, False), Level.OK), ((True, True), Level.WRONG), ((False, None), Level.NOTE)]
)
def test_one_beat_starts_the_learning_rounds(flags, level):
    members = {f"learner_l{place}": learner(beat=flag) for place, flag in enumerate(flags)}
    assert beats(snapshot(**members)).level is level


def test_memory_is_told_in_traces_and_in_time_of_this_traffic():
    history = [counted(NOW - 400.0, delivered=100), counted(NOW, delivered=500)]
    seen = snapshot(histories={"replica:a": history}, replica_a=replica(delivered=500, payload_bytes=500 * 405_000))
    assert room_for_traffic(seen, 1 << 30).sentence == (
        "PACELINE_BUFFER_MAX_BYTES, 1.00 GiB, holds 2651 traces of 405 kB: 44 min at the 1 traces per second of now"
    )
    quiet = snapshot(replica_a=replica(delivered=500, payload_bytes=500 * 405_000))
    assert quiet.histories == {}
    assert "no trace came in the last 10 min" in room_for_traffic(quiet, 1 << 30).sentence


def test_where_no_server_is_alive_nobody_knows_for_how_long_memory_lasts():
    history = [counted(NOW - 400.0, delivered=100), counted(NOW, delivered=500)]
    gone = replace(replica(delivered=500, payload_bytes=500 * 405_000), is_alive=False)
    finding = room_for_traffic(snapshot(histories={"replica:a": history}, replica_a=gone), 1 << 30)
    assert finding.level is Level.NOTE
    assert finding.sentence.endswith("; no server is alive, so for how long is not known")


@pytest.mark.parametrize(("is_well", "level"), [(True, Level.OK), (False, Level.WRONG), (None, Level.NOTE)])
def test_mlflow_is_looked_at_where_it_is_there(is_well, level):
    assert mlflow("default", snapshot(board()), None).level is Level.NOTE

    def look(speculator, state):
        return is_well, f"{speculator}, live {state.live}"

    finding = mlflow("default", snapshot(board()), look)
    assert (finding.level, finding.sentence) == (level, "default, live 1")
    one = {"what": "draft 2", "since": NOW - 300.0, "why": "too long", "action": "cut it"}
    said = learner(mlflow_waiting={"at": NOW, "count": 1, "longest": [one]})
    waits = "not told of draft 2 for 5 min: too long; cut it"
    finding = mlflow("default", snapshot(board(), learner_a=said), look)
    assert (finding.level, finding.sentence) == (
        Level.WRONG if is_well is False else Level.NOTE,
        f"{waits}; default, live 1",
    )
    assert mlflow("default", snapshot(board(), learner_a=said), None).sentence == waits


def test_findings_are_lines_or_objects(capsys):
    said = [Finding("Redis", Level.OK, "answers"), Finding("TLS", Level.UNKNOWN, "[x]")]
    assert say_findings(said, as_json=False) == 2
    assert capsys.readouterr().out == "ok       Redis     answers\nunknown  TLS       [x]\n"
    assert say_findings(said, as_json=True) == 2
    assert [json.loads(line)["topic"] for line in capsys.readouterr().out.splitlines()] == ["Redis", "TLS"]
