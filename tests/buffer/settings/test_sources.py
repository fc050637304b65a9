"""Where settings come from: the environment before the file, the file before the default, and no name unseen."""

import os

import pytest
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import ConfigError
from paceline.buffer.settings.sources import Origin, is_reserved, read_settings
from paceline.buffer.settings.table import SETTINGS


@pytest.fixture
def file(tmp_path):
    """Write paceline.toml; return the environment that names it."""

    def write(text: str) -> dict[str, str]:
        path = tmp_path / "settings.toml"
        path.write_text(text, encoding="utf-8")
        return {"PACELINE_CONFIG": str(path)}

    return write


@pytest.mark.parametrize("text", ["", " ", "\t\n"])
def test_an_empty_variable_means_that_the_setting_is_not_set(text):
    settings = read_settings({row.variable: text for row in SETTINGS})
    assert {row.name: settings.value(row.name) for row in SETTINGS} == {row.name: row.default for row in SETTINGS}
    assert {settings.origin(row.name) for row in SETTINGS} == {Origin.DEFAULT}
    assert settings.unknown == ()


def test_an_empty_variable_leaves_it_to_the_file_and_an_empty_key_to_the_default(file):
    rows = [row for row in SETTINGS if row.name != "CONFIG"]
    texts = {row: row.text(row.default) or ("s3://bucket" if row.name == "VERSIONS_URI" else "1") for row in rows}
    keys = "\n".join(f'{row.key} = "{text}"' for row, text in texts.items())
    given = read_settings({row.variable: "" for row in rows} | file(keys))
    assert {row.name: given.value(row.name) for row in rows} == {row.name: row.parse(texts[row], "") for row in rows}
    assert {given.origin(row.name) for row in rows} == {Origin.FILE}
    empty = read_settings(file("\n".join(f'{row.key} = " "' for row in rows)))
    assert {row.name: empty.value(row.name) for row in rows} == {row.name: row.default for row in rows}
    assert {empty.origin(row.name) for row in rows} == {Origin.DEFAULT}


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(file):
    env = file("buffer_max_bytes = 7\nspeculator = 'chat'") | {"PACELINE_BUFFER_MAX_BYTES": "9"}
    settings = read_settings(env)
    names = ("BUFFER_MAX_BYTES", "SPECULATOR", "BUFFER_CLAIM_IDLE_MS")
    assert [settings.value(name) for name in names] == [9, "chat", 600_000]
    assert [settings.origin(name) for name in names] == [Origin.ENVIRONMENT, Origin.FILE, Origin.DEFAULT]
    assert BufferConfig.from_env(env) == BufferConfig(speculator="chat", max_bytes=9)


def test_blanks_around_a_value_are_ignored():
    assert read_settings({"PACELINE_OPERATOR_TOKEN": "  a token\r\n"}).value("OPERATOR_TOKEN") == "a token"
    assert read_settings({"PACELINE_BUFFER_MAX_BYTES": " 5 "}).value("BUFFER_MAX_BYTES") == 5


def test_without_a_variable_the_file_in_the_working_directory_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_settings({}).value("PASSES") == 4
    (tmp_path / "paceline.toml").write_text("passes = 5")
    assert read_settings({}).value("PASSES") == 5
    assert read_settings({"PACELINE_CONFIG": ""}).value("PASSES") == 5
    assert read_settings({"PACELINE_CONFIG": os.devnull}).value("PASSES") == 4


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("passes = 3", "PASSES", 3),
        ("[learner]\npasses = 3", "PASSES", 3),
        ("[learner]\npasses = '3'", "PASSES", 3),
        ("cool_down_s = 3", "COOL_DOWN_S", 3.0),
        ("cool_down_s = 2.5", "COOL_DOWN_S", 2.5),
        ("capture_features = false", "CAPTURE_FEATURES", False),
        ("[serving]\ncapture_features = 1", "CAPTURE_FEATURES", True),
        ("target_version = 7", "TARGET_VERSION", "7"),
        ("[learner]\ntarget_versions = ['3', '5']", "TARGET_VERSIONS", ("3", "5")),
        ("target_versions = '3,5'", "TARGET_VERSIONS", ("3", "5")),
        ("[buffer]\nspeculator = 'chat'", "SPECULATOR", "chat"),
        ("[command_line]\noperator_token = 'secret'", "OPERATOR_TOKEN", "secret"),
    ],
)
def test_the_file_is_flat_or_has_a_table_for_each_reader(file, text, name, value):
    settings = read_settings(file(text))
    assert (settings.value(name), settings.unknown) == (value, ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pases = 3", "pases in {}: got an unknown name, expected a setting (the nearest is passes, "),
        (
            "PACELINE_PASSES = 3",
            "PACELINE_PASSES in {}: got an unknown name, expected a setting (the nearest is passes, ",
        ),
        ("[learner]\nzzz = 3", "learner.zzz in {}: got an unknown name, expected a setting (`paceline settings` "),
        (
            "[lerner]\nseed = 3",
            "lerner in {}: got an unknown table, expected one of [buffer], [serving], [learner], [c",
        ),
        ("config = 'a'", "config in {}: got the name of a file in a file, expected it in PACELINE_CONFIG"),
        ("[serving]\npasses = 3", "serving.passes in {}: got a setting of another table, expected it in [learner] or "),
        ("passes = 3\n[learner]\npasses = 3", "learner.passes in {}: got a second value, expected one"),
    ],
)
def test_a_key_that_is_no_setting_or_is_not_where_it_belongs_is_named_and_sets_nothing(file, text, said):
    env = file(text)
    settings = read_settings(env)
    (complaint,) = settings.unknown
    assert complaint.startswith(said.format(env["PACELINE_CONFIG"]))
    assert settings.value("PASSES") == (3 if text.startswith("passes") else 4)
    with pytest.raises(ConfigError) as caught:
        settings.require_known()
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("passes = ", "that cannot be read (Invalid value"),
        ("passes = 1979-05-27", "passes in .*: got a date, expected text, a number, true or false, or a list of texts"),
        ("target_versions = [3, 5]", "target_versions in .*: got a list, expected text, a number"),
        ("[learner.passes]\nvalue = 3", "learner.passes in .*: got a dict, expected text"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(file, text, said):
    with pytest.raises(ConfigError) as caught:
        read_settings(file(text))
    caught.match(said.replace("(", r"\("))


def test_a_file_that_is_named_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match=r"PACELINE_CONFIG: got '/nowhere/a.toml' that cannot be read"):
        read_settings({"PACELINE_CONFIG": "/nowhere/a.toml"})
    (tmp_path / "a.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"that cannot be read .*, expected TOML"):
        read_settings({"PACELINE_CONFIG": str(tmp_path / "a.toml")})


def test_a_bad_value_of_the_file_is_named_by_its_place(file):
    env = file("[learner]\npasses = 0")
    with pytest.raises(ConfigError) as caught:
        read_settings(env).value("PASSES")
    expected = f"learner.passes in {env['PACELINE_CONFIG']}: got '0', expected an integer of at least 1"
    assert str(caught.value) == expected


def test_a_bad_value_is_no_fault_until_it_is_asked_for():
    settings = read_settings({"PACELINE_PASSES": "many", "PACELINE_SAMPLE_RATE": "0.5"})
    assert settings.value("SAMPLE_RATE") == 0.5


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("PACELINE_PASES", "got an unknown name, expected a setting (the nearest is PACELINE_PASSES, "),
        (
            "PACELINE_BUFFER_MAX_BYT",
            "got an unknown name, expected a setting (the nearest is PACELINE_BUFFER_MAX_BYTES, ",
        ),
        ("PACELINE_ZZZ", "got an unknown name, expected a setting (`paceline settings` lists all)"),
        ("PACELINE_passes", "got an unknown name"),
    ],
)
def test_a_variable_that_is_no_setting_is_answered_with_the_one_that_was_meant(variable, said):
    (complaint,) = read_settings({variable: "hunter2"}).unknown
    assert complaint.startswith(f"{variable}: {said}")
    assert "hunter2" not in complaint
    assert read_settings({variable: " "}).unknown == ()


def test_every_name_that_is_no_setting_is_named_at_once(file):
    env = {**file("pases = 1"), "PACELINE_ZZZ": "1", "PACELINE_YYY": "1"}
    with pytest.raises(ConfigError) as caught:
        read_settings(env).require_known()
    assert all(name in str(caught.value) for name in ("pases in ", "PACELINE_ZZZ", "PACELINE_YYY"))


@pytest.mark.parametrize(
    "variable",
    [
        "PACELINE_CI_RUN",
        "PACELINE_TEST_MARK",
        "PACELINE_SERVICE_HOST",  # as Kubernetes sets them for services called paceline, paceline-redis ...
        "PACELINE_PORT",
        "PACELINE_REDIS_SERVICE_HOST",
        "PACELINE_REDIS_SERVICE_PORT",
        "PACELINE_REDIS_SERVICE_PORT_TLS",
        "PACELINE_REDIS_PORT",
        "PACELINE_REDIS_PORT_6379_TCP",
        "PACELINE_REDIS_PORT_6379_TCP_ADDR",
    ],
)
def test_a_reserved_variable_is_ignored(variable):
    assert is_reserved(variable)
    assert read_settings({variable: "tcp://10.0.0.1:6379"}).unknown == ()


def test_other_peoples_variables_are_none_of_ours():
    assert read_settings({"PATH": "/bin", "XPACELINE_A": "1", "SGLANG_PLUGINS": "paceline"}).unknown == ()
    assert not is_reserved("PACELINE_CITY")
    assert not is_reserved("PACELINE_SUPPORT")


def test_no_repr_of_settings_shows_a_value():
    settings = read_settings({"PACELINE_OPERATOR_TOKEN": "hunter2", "PACELINE_REDIS_URL": "redis://:hunter2@h/0"})
    assert "hunter2" not in repr(settings)
