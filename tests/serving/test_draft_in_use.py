"""What a trainer learns of drafts from Redis, and what it leaves there."""

from dataclasses import replace

import pytest
import redis
from made_versions import made_version
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable, ConfigError
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.serving.rollouts.config import RolloutConfig, from_env, server_env
from paceline.serving.rollouts.draft_in_use import DraftInUse, DraftLink

VERSION = made_version(0, target_version="7", weights_uri="file:///weights/v0")


@pytest.fixture
def link(redis_client: redis.Redis, redis_url: str):
    made = DraftLink(RolloutConfig(redis_url))
    yield made
    made.close()


def beat(board: RedisVersionBoard, replica: str, draft_version: int | None = None) -> None:
    board.beat(f"replica:{replica}", MemberStatus(draft_version=draft_version), 60.0)


def test_the_draft_in_use_is_the_oldest_that_a_server_drafts_with(link: DraftLink, redis_client: redis.Redis) -> None:
    board = RedisVersionBoard(redis_client, BufferConfig())
    assert link.in_use() is None
    beat(board, "a", draft_version=0)
    assert link.in_use() == DraftInUse(0, None)  # nobody has told the board what it was learnt on
    board.register(VERSION, "learner", "first")
    board.register(replace(VERSION, number=1, target_version="9"), "learner", "second")
    beat(board, "b", draft_version=1)
    board.beat("learner:x", MemberStatus(draft_version=-5), 60.0)
    assert link.in_use() == DraftInUse(0, "7")
    beat(board, "a", draft_version=1)
    assert link.in_use() == DraftInUse(1, "9")


def test_an_ask_is_found_by_the_learner_s_buffer(link: DraftLink, redis_client: redis.Redis) -> None:
    link.ask_for_round()
    assert RedisTraceBuffer(redis_client, BufferConfig()).take_ask()


def test_without_a_redis_there_is_no_link() -> None:
    with pytest.raises(ConfigError, match="PACELINE_REDIS_URL: got nothing, expected the Redis of the servers"):
        DraftLink(RolloutConfig())
    with pytest.raises(BufferUnavailable, match="start Redis or correct PACELINE_REDIS_URL"):
        DraftLink(RolloutConfig("redis://127.0.0.1:9/0"))


def test_what_is_given_wins_over_the_environment_and_reaches_a_server() -> None:
    environ = {
        "PACELINE_REDIS_URL": "redis://a:1/0",
        "PACELINE_SPECULATOR": "chat",
        "HOME": "/h",
        "PACELINE_CONFIG": "/dev/null",
    }
    config = from_env(environ=environ)
    assert (config.redis_url, config.buffer.speculator) == ("redis://a:1/0", "chat")
    given = from_env("redis://b:2/0", "rl", environ)
    assert (given.redis_url, given.buffer.speculator) == ("redis://b:2/0", "rl")
    assert server_env(given, environ) == environ | {"PACELINE_REDIS_URL": "redis://b:2/0", "PACELINE_SPECULATOR": "rl"}
    alone = from_env(environ={"PACELINE_CONFIG": "/dev/null"})
    assert "PACELINE_REDIS_URL" not in server_env(alone, {})
