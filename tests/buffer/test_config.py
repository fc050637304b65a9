"""Settings of the buffer: defaults, the environment, and errors that name setting, got and expected."""

from dataclasses import FrozenInstanceError

import pytest
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import ConfigError

VARIABLES = {
    "speculator": "PACELINE_SPECULATOR",
    "max_bytes": "PACELINE_BUFFER_MAX_BYTES",
    "max_age_s": "PACELINE_BUFFER_MAX_AGE_S",
    "claim_idle_ms": "PACELINE_BUFFER_CLAIM_IDLE_MS",
}


def test_an_empty_environment_keeps_the_defaults():
    assert BufferConfig.from_env({}) == BufferConfig(
        speculator="default", max_bytes=1024**3, max_age_s=86_400.0, claim_idle_ms=600_000, group="learners"
    )


def test_every_variable_is_read():
    values = ("chat", "1000", "0.5", "0")
    config = BufferConfig.from_env(dict(zip(VARIABLES.values(), values, strict=True)))
    assert config == BufferConfig(speculator="chat", max_bytes=1000, max_age_s=0.5, claim_idle_ms=0)


def test_an_empty_value_keeps_its_default():
    assert BufferConfig.from_env(dict.fromkeys(VARIABLES.values(), "")) == BufferConfig()


NAME = "1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PACELINE_SPECULATOR", "a{b}", NAME),
        ("PACELINE_SPECULATOR", "../up", NAME),
        ("PACELINE_SPECULATOR", "two words", NAME),
        ("PACELINE_SPECULATOR", "a" * 65, NAME),
        ("PACELINE_BUFFER_MAX_BYTES", "1GB", "an integer of at least 1"),
        ("PACELINE_BUFFER_MAX_BYTES", "0", "an integer of at least 1"),
        ("PACELINE_BUFFER_MAX_AGE_S", "1d", "a finite number of at least 0.001"),
        ("PACELINE_BUFFER_MAX_AGE_S", "nan", "a finite number of at least 0.001"),
        ("PACELINE_BUFFER_MAX_AGE_S", "inf", "a finite number of at least 0.001"),
        ("PACELINE_BUFFER_MAX_AGE_S", "0", "a finite number of at least 0.001"),
        ("PACELINE_BUFFER_CLAIM_IDLE_MS", "2.5", "an integer of at least 0"),
        ("PACELINE_BUFFER_CLAIM_IDLE_MS", "-1", "an integer of at least 0"),
    ],
)
def test_a_bad_value_in_the_environment_is_an_error_naming_variable_got_and_expected(variable, value, expected):
    with pytest.raises(ConfigError) as caught:
        BufferConfig.from_env({variable: value})
    assert str(caught.value) == f"{variable}: got {value!r}, expected {expected}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("speculator", ""),
        ("max_bytes", 0),
        ("max_age_s", 0.0),
        ("max_age_s", float("nan")),
        ("max_age_s", float("inf")),
        ("claim_idle_ms", -1),
    ],
)
def test_a_bad_value_in_code_is_an_error_naming_its_variable_and_got(field, value):
    with pytest.raises(ConfigError) as caught:
        BufferConfig(**{field: value})
    assert str(caught.value).startswith(f"{VARIABLES[field]}: got {value!r}, expected ")


@pytest.mark.parametrize("group", ["", "a\nb", "two words", "{a}"])
def test_a_group_that_would_move_a_key_is_refused(group):
    with pytest.raises(ConfigError) as caught:
        BufferConfig(group=group)
    assert str(caught.value) == f"group: got {group!r}, expected a name without {{}} or blanks"


def test_settings_are_frozen():
    with pytest.raises(FrozenInstanceError):
        BufferConfig().speculator = "other"
