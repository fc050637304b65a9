"""The table of settings: every row can be read, written and described, and somebody reads it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
from msgspec import Meta
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import ConfigError
from paceline.buffer.settings.kinds import PacingName
from paceline.buffer.settings.setting import Reader, Setting
from paceline.buffer.settings.sources import is_reserved
from paceline.buffer.settings.table import BY_NAME, SETTINGS
from paceline.learner.config import LearnerConfig
from paceline.learner.config import from_env as learner_from_env
from paceline.policies.learn_schedule import LearnMode
from paceline.serving.config import ServingConfig
from paceline.serving.config import from_env as serving_from_env

#: A config object, what reads it, and the variables that it must have.
CONFIGS = {
    BufferConfig: (BufferConfig.from_env, {}),
    ServingConfig: (serving_from_env, {}),
    LearnerConfig: (
        learner_from_env,
        {"PACELINE_TARGET_PATH": "/m/llama", "PACELINE_DRAFT": "/m/draft", "PACELINE_TARGET_VERSION": "5"},
    ),
}
#: Each setting takes one of these that is not its default; `4,5` ends with the target's own version.
TEXTS = ("4,5", "s3://bucket/drafts", "31", "0.25", "1", "0", "always", "matched", "int8", "sweep", "memory")
#: Read where they are needed; no config object holds them.
ELSEWHERE = {"CONFIG", "CPU_HOST", "OPERATOR_TOKEN"}


def held(config):
    return {each.metadata["setting"].name for each in fields(config) if "setting" in each.metadata}


def test_a_name_is_given_once_and_is_not_reserved():
    names = [row.name for row in SETTINGS]
    assert len(set(names)) == len(names)
    assert [row.variable for row in SETTINGS if is_reserved(row.variable)] == []


def test_every_setting_is_held_by_a_config_object_of_its_reader():
    assert set().union(*map(held, CONFIGS)) == BY_NAME.keys() - ELSEWHERE
    for row in SETTINGS:
        assert row.reader is not Reader.SERVING or row.name in held(ServingConfig) | ELSEWHERE
        assert row.reader is not Reader.LEARNER or row.name in held(LearnerConfig)


def another(row: Setting) -> tuple[str, Any]:
    """A legal text that is not the default, and its value."""
    for text in TEXTS:
        try:
            value = row.parse(text, "")
        except ConfigError:
            continue
        if value != row.default:
            return text, value
    raise AssertionError(row.name)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_setting_is_read_into_its_own_field_and_an_empty_variable_changes_none(kind):
    read, needed = CONFIGS[kind]
    plain = read(needed)
    for each in fields(kind):
        if row := each.metadata.get("setting"):
            text, value = another(row)
            assert read(needed | {row.variable: text}) == replace(plain, **{each.name: value}), row.name
            assert row.variable in needed or read(needed | {row.variable: ""}) == plain, row.name


def test_every_row_says_what_it_is_and_its_default_is_in_its_range():
    for row in SETTINGS:
        text = row.text(row.default)
        assert row.sentence.endswith("."), row.name
        assert row.expected, row.name
        assert row.parse(text, row.variable) == row.default if text else row.unset, row.name


def test_a_name_that_ends_in_a_unit_has_that_unit():
    units = {"_S": "s", "_MS": "ms", "_BYTES": "bytes", "_TOKENS": "tokens", "_TRACES": "traces"}
    named = [(row, unit) for row in SETTINGS for end, unit in units.items() if row.name.endswith(end)]
    assert [row.name for row, unit in named if row.unit != unit] == []


def test_the_learn_modes_are_those_of_the_policy():
    assert set(get_args(BY_NAME["LEARN"].kind)) == set(LearnMode)


EVEN = Annotated[str, Meta(pattern="^(..)*$", description="an even number of letters")]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "-3", -3),
        (int, "1073741824", 1024**3),
        (float, "2", 2.0),
        (float, "1e-3", 0.001),
        (float, "86400", 86_400.0),
        (bool, "1", True),
        (bool, "0", False),
        (bool, "true", True),
        (bool, "False", False),
        (str, "5", "5"),
        (str, "null", "null"),
        (str, "a\udcffb", "a\udcffb"),  # bytes of the environment that are no UTF-8
        (Path, "/a/b", Path("/a/b")),
        (tuple[str, ...], "3, 5,,7 ", ("3", "5", "7")),
        (PacingName, "off", PacingName.OFF),
        (Literal["a", "b"], "b", "b"),
        (EVEN, "abcd", "abcd"),
    ],
)
def test_a_text_is_read_as_its_kind_and_written_so_that_it_is_read_alike(kind, text, value):
    row = Setting("A", kind, None, "")
    read = row.parse(text, "PACELINE_A")
    assert (read, type(read)) == (value, type(value))
    assert row.parse(row.text(read), "PACELINE_A") == value
    row.check(value)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (int, "1GB", "an integer"),
        (int, "2.5", "an integer"),
        (int, "null", "an integer"),
        (Annotated[int, Meta(ge=1)], "0", "an integer of at least 1"),
        (float, "1d", "a finite number"),
        (float, "nan", "a finite number"),
        (float, "inf", "a finite number"),
        (float, "1e400", "a finite number"),
        (Annotated[float, Meta(gt=0, lt=1)], "1", "a finite number above 0 and below 1"),
        (Annotated[float, Meta(ge=0, le=1)], "1.5", "a finite number of at least 0 and at most 1"),
        (Annotated[float, Meta(ge=0.001)], "nan", "a finite number of at least 0.001"),
        (bool, "yes", "0 or 1"),
        (bool, "2", "0 or 1"),
        (PacingName, "bandit", "one of off, goodput, sweep"),
        (Literal["a", "b"], "c", "one of a, b"),
        (EVEN, "abc", "an even number of letters"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name_what_was_got_and_what_was_expected(kind, text, expected):
    with pytest.raises(ConfigError) as caught:
        Setting("A", kind, None, "").parse(text, "a in paceline.toml")
    assert str(caught.value) == f"a in paceline.toml: got {text!r}, expected {expected}"


def test_a_value_made_in_code_is_held_to_the_same_range():
    row = Setting("A", Annotated[float, Meta(ge=0)], 1.0, "")
    row.check(0.5)
    row.check(None)
    for value in (-1.0, float("nan"), float("inf"), "much"):
        with pytest.raises(ConfigError, match=r"PACELINE_A: got .*, expected a finite number of at least 0"):
            row.check(value)


@pytest.mark.parametrize("value", [5, True, ["a"]])
def test_a_path_made_in_code_of_what_no_path_can_be_made_of_is_refused(value):
    with pytest.raises(ConfigError) as caught:
        Setting("A", Path, None, "").check(value)
    assert str(caught.value) == f"PACELINE_A: got {value!r}, expected a path"


def test_a_secret_is_neither_in_an_error_nor_shown():
    row = Setting("A", Annotated[str, Meta(min_length=9)], None, "", mask=lambda text: f"{text[0]}***")
    with pytest.raises(ConfigError) as caught:
        row.parse("hunter2", "PACELINE_A")
    assert str(caught.value) == "PACELINE_A: got a value that is not shown, expected text"
    assert row.shown("hunter2-hunter2") == "h***"


def test_control_characters_of_a_value_do_not_reach_the_terminal():
    assert Setting("A", str, None, "").shown("a\x1b[2Jb") == r"'a\x1b[2Jb'"
