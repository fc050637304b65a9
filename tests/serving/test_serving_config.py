"""Settings of the SGLang process: defaults, and errors that name key, got and expected."""

import pytest
from paceline.buffer.errors import ConfigError
from paceline.serving.config import PacingName, ServingConfig, from_env


def test_without_a_redis_url_there_is_none_and_capture_stays_off():
    assert from_env({}).redis_url is None
    assert from_env({"PACELINE_REDIS_URL": ""}).redis_url is None


def test_the_environment_fills_the_fields():
    env = {
        "PACELINE_REDIS_URL": "redis://h:1/0",
        "PACELINE_REPLICA": "a",
        "PACELINE_TOP_K": "4",
        "PACELINE_GREEDY_TOP_K": "3",
        "PACELINE_FEATURES": "0",
    }
    made = from_env(env | {"PACELINE_SAMPLE_RATE": "0.25", "PACELINE_SPECULATOR": "s"})
    assert (made.redis_url, made.replica, made.capture_features) == ("redis://h:1/0", "a", False)
    assert (made.top_k, made.greedy_top_k) == (4, 3)
    assert (made.sample_rate, made.buffer.speculator) == (0.25, "s")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("PACELINE_TOP_K", "many", "PACELINE_TOP_K: got 'many', expected an integer"),
        ("PACELINE_GREEDY_TOP_K", "-1", "PACELINE_GREEDY_TOP_K: got -1, expected at least 0"),
        ("PACELINE_TOP_K", "-1", "PACELINE_TOP_K: got -1, expected at least 0"),
        ("PACELINE_SAMPLE_RATE", "1.5", "PACELINE_SAMPLE_RATE: got 1.5, expected 0.0..1.0"),
        ("PACELINE_PACING", "fast", r"PACELINE_PACING: got 'fast', expected one of \['off', 'goodput', 'threshold', "),
        ("PACELINE_CONTEXT_TOKENS", "4096", r"expected < PACELINE_WINDOW_TOKENS \(2048\)"),
    ],
)
def test_a_bad_value_is_named(key, value, expected):
    with pytest.raises(ConfigError, match=expected):
        from_env({key: value})


def test_the_password_is_not_in_the_repr():
    assert "secret" not in repr(from_env({"PACELINE_REDIS_URL": "redis://:secret@h:1/0"}))
    assert ServingConfig(None, from_env({}).buffer).top_k == 4


@pytest.mark.parametrize(("value", "name"), [(None, "goodput"), ("", "goodput"), ("off", "off"), ("sweep", "sweep")])
def test_pacing_is_by_goodput_unless_said_otherwise(value, name):
    env = {} if value is None else {"PACELINE_PACING": value, "PACELINE_PACING_COSTS": "/a/costs.json"}
    made = from_env(env)
    assert made.pacing is PacingName(name)
    assert made.pacing_costs == ("" if value is None else "/a/costs.json")
