"""Settings of the buffer: defaults, the environment, and errors that name key, got and expected."""

from dataclasses import FrozenInstanceError

import pytest
from paceline.buffer.config import ENV_KEYS, BufferConfig
from paceline.buffer.errors import ConfigError


def test_an_empty_environment_keeps_the_defaults():
    assert BufferConfig.from_env({}) == BufferConfig("default", "learners", 1024**3, 86_400.0, 600_000)


def test_every_key_is_read():
    values = ("chat", "trainers", "1000", "0.5", "0")
    config = BufferConfig.from_env(dict(zip(ENV_KEYS.values(), values, strict=True)))
    assert config == BufferConfig("chat", "trainers", 1000, 0.5, 0)


def test_an_empty_value_keeps_its_default():
    assert BufferConfig.from_env(dict.fromkeys(ENV_KEYS.values(), "")) == BufferConfig()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("PACELINE_SPECULATOR", "a{b}", "a name without {} or blanks"),
        ("PACELINE_BUFFER_GROUP", "two words", "a name without {} or blanks"),
        ("PACELINE_BUFFER_MAX_BYTES", "1GB", "an integer"),
        ("PACELINE_BUFFER_MAX_BYTES", "0", "at least 1"),
        ("PACELINE_BUFFER_MAX_AGE_S", "1d", "a number"),
        ("PACELINE_BUFFER_MAX_AGE_S", "nan", "a finite number of at least 0.001"),
        ("PACELINE_BUFFER_MAX_AGE_S", "inf", "a finite number of at least 0.001"),
        ("PACELINE_BUFFER_MAX_AGE_S", "0", "a finite number of at least 0.001"),
        ("PACELINE_BUFFER_CLAIM_IDLE_MS", "2.5", "an integer"),
        ("PACELINE_BUFFER_CLAIM_IDLE_MS", "-1", "at least 0"),
    ],
)
def test_a_bad_value_in_the_environment_is_an_error_naming_key_got_and_expected(key, value, expected):
    with pytest.raises(ConfigError) as caught:
        BufferConfig.from_env({key: value})
    assert key in str(caught.value)
    assert f"got {value}" in str(caught.value).replace("'", "")
    assert str(caught.value).endswith(f"expected {expected}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("speculator", ""),
        ("group", "a\nb"),
        ("max_bytes", 0),
        ("max_age_s", 0.0),
        ("max_age_s", float("nan")),
        ("max_age_s", float("inf")),
        ("claim_idle_ms", -1),
    ],
)
def test_a_bad_value_in_code_is_an_error_naming_field_key_and_got(field, value):
    with pytest.raises(ConfigError) as caught:
        BufferConfig(**{field: value})
    assert f"{field} ({ENV_KEYS[field]}): got {value!r}, expected " in str(caught.value)


def test_settings_are_frozen():
    with pytest.raises(FrozenInstanceError):
        BufferConfig().speculator = "other"
