"""Settings of the buffer: defaults, the environment, and errors that name setting, got and expected."""

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


NAME = "1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"


@pytest.mark.parametrize("name", ["a{b}", "../up", "two words", "a" * 65])
def test_a_speculator_has_a_plain_name(name):
    with pytest.raises(ConfigError) as caught:
        BufferConfig.from_env({"PACELINE_SPECULATOR": name})
    assert str(caught.value) == f"PACELINE_SPECULATOR: got {name!r}, expected {NAME}"


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
