"""Whose board a command opens when nobody says."""

import pytest
from paceline.buffer.board.board_access import open_board, passing_board
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import ConfigError
from paceline.buffer.settings.sources import read_settings


@pytest.fixture
def opened(redis_url, redis_client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # no paceline.toml

    def open_(speculator: str | None = None, **environ: str) -> str:
        return open_board(read_settings({"PACELINE_REDIS_URL": redis_url, **environ}), None, speculator).speculator

    return open_


@pytest.fixture
def beats(redis_client):
    def beat(*names: str) -> None:
        for name in names:
            RedisVersionBoard(redis_client, BufferConfig(speculator=name)).beat("replica:a", MemberStatus(), 60.0)

    return beat


def test_the_only_speculator_is_taken(opened, beats):
    beats("chat")
    assert opened() == "chat"


def test_in_a_redis_without_one_it_is_the_default(opened):
    assert opened() == "default"


def test_several_are_listed_and_no_connection_is_left_open(opened, beats, redis_client):
    beats("chat", "code")
    before = {client["id"] for client in redis_client.client_list()}
    with pytest.raises(ConfigError) as caught:
        opened()
    assert "got nothing, and Redis has chat, code, expected one of them there or in --" in str(caught.value)
    assert {client["id"] for client in redis_client.client_list()} <= before


def test_what_is_said_wins(opened, beats, tmp_path):
    beats("chat", "code")
    assert opened("code") == "code"
    assert opened(PACELINE_SPECULATOR="chat") == "chat"
    assert opened("code", PACELINE_SPECULATOR="chat") == "code"
    (tmp_path / "paceline.toml").write_text('speculator = "code"')
    assert opened() == "code"


def test_a_foreign_name_does_not_steer_the_terminal_and_is_not_taken(opened, beats, redis_client):
    redis_client.zadd("paceline:{a\x1b[2J}:members", {"x": 1})
    with pytest.raises(ConfigError, match="SPECULATOR"):
        opened()
    beats("chat")
    with pytest.raises(ConfigError) as caught:
        opened()
    assert str(caught.value).isprintable()


def test_a_passing_board_leaves_no_key_and_touches_no_other(opened, beats, redis_url, redis_client):
    beats("chat", "pass")  # one name begins as the other does
    kept = sorted(redis_client.keys())
    with passing_board(read_settings({"PACELINE_REDIS_URL": redis_url}), "passing") as board:
        board.beat("replica:b", MemberStatus(), 60.0)
        assert board.heartbeats() == {"replica:b": MemberStatus()}
    assert sorted(redis_client.keys()) == kept
