"""The operator's commands against a real Redis: what they change, what they ask for, and what they leave on record.

Then the settings that every command reads.
"""

import json
import os
import subprocess
import sys

import pytest
from fleet import publish, version
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from paceline.buffer.config import BufferConfig
from paceline.cli import app
from typer.testing import CliRunner, Result

NOBODY = ", no server is alive to take it"
TOKEN = "the operator's own token"
OTHER = "another operator's token"


@pytest.fixture
def paceline(redis_url, redis_client, monkeypatch):
    """Run `paceline <words>`; `token` is in the environment, `typed` on stdin."""
    monkeypatch.delenv("PACELINE_OPERATOR_TOKEN", raising=False)

    def run(*words: str, token: str = "", typed: str = "") -> Result:
        env = {"PACELINE_REDIS_URL": redis_url, "PACELINE_SPECULATOR": "default", "PACELINE_OPERATOR_TOKEN": token}
        return CliRunner().invoke(app, words, input=typed, env=env)

    return run


@pytest.fixture
def weights(tmp_path):
    """The file that every version of `board` names."""
    file = tmp_path / WEIGHTS_FILE
    file.write_bytes(b"weights")
    return file


@pytest.fixture
def board(redis_client, weights) -> RedisVersionBoard:
    """Version 0 retired, 1 live, 2 a candidate."""
    board = RedisVersionBoard(redis_client, BufferConfig())
    published = {"weights_uri": weights.parent.as_uri(), "sha256": sha256_of(weights)}
    publish(board, 0, 1, **published)
    board.register(version(2, **published), "learner", "trained")
    return board


def test_without_a_token_on_the_board_none_is_asked_for(paceline, board):
    assert paceline("promote", "2", "--why", "by hand").output == f"version 2 is live on the board{NOBODY}\n"
    assert paceline("rollback").output == "version 1 is live on the board, and there is no canary\n"
    assert board.read().live == 1
    assert [(event.number, event.why) for event in board.events()[-3:]] == [
        (2, "by hand"),
        (2, "rolled back by an operator"),
        (1, "rolled back by an operator"),
    ]


def test_only_weights_that_are_those_published_go_live_unless_the_check_is_skipped(paceline, board, weights):
    weights.write_bytes(b"others")
    refused = paceline("promote", "2")
    assert (refused.exit_code, board.read().live) == (1, 1)
    assert f"of {weights}, expected" in refused.stderr
    weights.unlink()
    assert "pass --unchecked" in paceline("promote", "2").stderr.replace("\n", " ")
    assert paceline("promote", "2", "--unchecked").output == f"version 2 is live on the board{NOBODY}\n"


@pytest.mark.guarantee("operator-token")
@pytest.mark.parametrize("words", [("promote", "2"), ("rollback",), ("token", "set")])
@pytest.mark.parametrize(("token", "got"), [("", "got no token"), (OTHER, "got another token")])
def test_once_a_token_is_set_every_command_that_changes_something_asks_for_it(paceline, board, words, token, got):
    assert paceline("token", "set", typed=TOKEN).exit_code == 0
    before = board.events()
    refused = paceline(*words, token=token, typed=OTHER)
    assert (refused.exit_code, board.events()) == (1, before)
    assert f"{got}, expected the operator token" in refused.stderr
    assert "put it into PACELINE_OPERATOR_TOKEN" in refused.stderr
    assert paceline(*words, token=TOKEN, typed=OTHER).exit_code == 0


def test_reading_and_members_need_no_token(paceline, board):
    paceline("token", "set", typed=TOKEN)
    assert paceline("alarms").exit_code == 2  # nobody is there to say
    assert paceline("versions").exit_code == 0
    assert paceline("audit").exit_code == 0
    board.move(2, VersionState.LIVE, "learner", "won the gate")
    assert board.roll_back("replica:a", "served worse").live == 1


@pytest.mark.parametrize(("typed", "token"), [(f"{TOKEN}\n", ""), (f"  {TOKEN}\r\nmore\n", OTHER), ("", TOKEN)])
def test_a_new_token_is_the_first_line_of_stdin_or_what_the_environment_holds(paceline, board, typed, token):
    assert (
        "promote, rollback, forget and token set ask for" in paceline("token", "set", typed=typed, token=token).output
    )
    assert paceline("rollback", token=TOKEN).exit_code == 0


def test_no_token_and_a_short_one_are_refused_and_nothing_is_set(paceline, board):
    for typed, length in (("", 0), ("hunter2-hunter2\n", 15)):
        refused = paceline("token", "set", typed=typed)
        assert refused.exit_code == 1
        assert f"got {length} characters, expected at least 16; make one with `openssl rand -hex 32`" in refused.stderr
        assert "hunter2" not in refused.output
    assert paceline("rollback").exit_code == 0


@pytest.mark.guarantee("operator-token")
def test_a_token_can_be_given_in_no_argument(paceline, board):
    for words in (("promote", "2", "--token", TOKEN), ("token", "set", TOKEN), ("rollback", "--operator-token", TOKEN)):
        assert paceline(*words).exit_code == 2
    assert paceline("rollback").exit_code == 0


@pytest.mark.guarantee("operator-token")
def test_no_command_shows_a_token_or_the_password_of_redis(paceline, board, redis_client, redis_url):
    paceline("token", "set", typed=TOKEN)
    secret = redis_url.replace("://", "://:s3cret@")
    shown = [
        paceline(*words, token=OTHER).output
        for words in (("rollback",), ("audit",), ("audit", "--json"), ("promote", "--help"), ("token", "set", "--help"))
    ]
    shown.append(paceline("versions", "--redis-url", secret).output)
    shown.append(paceline("versions", "--redis-url", secret.replace("/0", ":x/0")).output)
    for text in shown:
        assert TOKEN not in text
        assert OTHER not in text
        assert "s3cret" not in text


@pytest.mark.guarantee("audit-trail")
def test_the_audit_shows_who_changed_what_when_and_why_newest_last(paceline, board):
    paceline("token", "set", "--why", "hardening", typed=TOKEN)
    paceline("promote", "2", "--why", "mine is better", token=OTHER)
    paceline("promote", "2", "--why", "looks good", token=TOKEN)
    entries = [json.loads(line) for line in paceline("audit", "--json").output.splitlines()]
    assert [entry["what"] for entry in entries] == [
        "version 0 candidate",
        "version 0 live",
        "version 1 candidate",
        "version 1 live",
        "version 2 candidate",
        "operator token set",
        "refused: promote 2",
        "version 2 live",
    ]
    assert [(entry["why"], entry["refused"]) for entry in entries[-3:]] == [
        ("hardening", False),
        ("got another token", True),
        ("looks good", False),
    ]
    assert {entry["by"] for entry in entries[:5]} == {"learner"}
    assert len({entry["by"] for entry in entries[5:]}) == 1
    assert entries[-1]["by"].startswith("operator:")
    assert sorted(entries[-1]) == ["at", "by", "refused", "what", "when", "why"]
    lines = paceline("audit", "--newest", "2").output.splitlines()
    assert [line.partition("Z  ")[0] + "Z" for line in lines] == [entry["when"] for entry in entries[-2:]]
    assert lines[-1].endswith("looks good")


def test_the_audit_of_an_empty_board_is_empty(paceline):
    assert paceline("audit").stdout == ""
    assert paceline("audit").stderr == "nobody has changed anything on the board of default yet\n"


COMMANDS = [
    ("settings",),
    ("versions",),
    ("alarms",),
    ("audit",),
    ("promote", "2"),
    ("rollback",),
    ("token", "set"),
    ("doctor",),
    ("demo",),
    ("serve", "--", "--device", "cpu"),
    ("pacing-costs", "--", "--device", "cpu"),
    ("learn",),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_name_that_is_no_setting_stops_every_command(paceline, board, monkeypatch, words):
    monkeypatch.setenv("PACELINE_MIN_NEW_TRACE", "hunter2")
    before = board.events()
    refused = paceline(*words)
    assert (refused.exit_code, board.events()) == (1, before)
    said = "(the nearest is PACELINE_MIN_NEW_TRACES, `paceline settings` lists all)"
    assert said in refused.stderr.replace("\n", " ")
    assert "hunter2" not in refused.output


@pytest.mark.parametrize(
    ("command", "module"),
    [("demo", "httpx"), ("learn", "celery"), ("draft init target", "transformers")],
)
def test_a_command_whose_extra_is_not_installed_says_in_one_line_what_to_install(command, module):
    code = f"import sys; sys.modules[{module!r}] = None; from paceline.cli import app; app({command.split()})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    extra = "demo" if command == "demo" else "learner"
    needs = f"paceline[{extra}], by pip install '/path/to/paceline[{extra}]'"
    assert done.stderr == f"paceline: got no module {module}, expected {needs}\n"


def test_settings_are_listed_even_when_a_name_among_them_is_unknown(paceline, monkeypatch):
    monkeypatch.setenv("PACELINE_PASES", "3")
    shown = paceline("settings")
    assert shown.exit_code == 1
    assert "PACELINE_PASSES" in shown.stdout
    assert TOKEN not in paceline("settings", "--json", token=TOKEN).stdout
    assert "PACELINE_PASES: got an unknown name" in shown.stderr


def test_the_command_line_wins_over_the_environment_and_the_environment_over_the_file(
    paceline, board, monkeypatch, tmp_path, redis_url
):
    (tmp_path / "a.toml").write_text("redis_url = 'redis://127.0.0.1:9/0'\nspeculator = 'other'")
    monkeypatch.setenv("PACELINE_CONFIG", str(tmp_path / "a.toml"))
    assert "learner" in paceline("audit").output
    assert "got other, of which Redis has no board" in paceline("audit", "--speculator", "other").stderr
    refused = paceline("audit", "--redis-url", "redis://127.0.0.1:9/0")
    assert "start Redis or correct PACELINE_REDIS_URL" in refused.stderr
    env = {"PACELINE_REDIS_URL": redis_url, "PACELINE_SPECULATOR": ""}
    assert "got other, of which" in CliRunner().invoke(app, ["audit"], env=env).stderr  # the file's speculator


def test_a_token_may_come_from_the_file(paceline, board, monkeypatch, tmp_path):
    paceline("token", "set", typed=TOKEN)
    assert paceline("rollback").exit_code == 1
    (tmp_path / "a.toml").write_text(f'operator_token = "{TOKEN}"')
    monkeypatch.setenv("PACELINE_CONFIG", str(tmp_path / "a.toml"))
    assert paceline("rollback").exit_code == 0


def test_the_manual_is_printed_whatever_is_set():
    env = {**os.environ, "PACELINE_PASES": "3"}
    command = [sys.executable, "-m", "paceline.cli", "settings", "--markdown"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("# Settings\n")
