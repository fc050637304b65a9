"""Settings of the SGLang process: defaults, ranges, what the courier is given, and names that are no settings."""

import os
import sys
from types import SimpleNamespace

import pytest
from paceline.buffer.settings.kinds import PacingName
from paceline.buffer.stream.feature_rows import FeatureDtype
from paceline.serving import hook_targets, plugin
from paceline.serving.config import ServingConfig, courier_env, from_env
from paceline.serving.cpu_host.config import is_switched_on

REDIS = "redis://:secret@h:1/0"


def test_without_a_redis_url_there_is_none_and_capture_stays_off():
    assert from_env({}).redis_url is None
    assert from_env({"PACELINE_REDIS_URL": ""}).redis_url is None
    assert from_env({}) == ServingConfig()


@pytest.mark.parametrize("given", ["", "follow", "0"])
def test_a_server_whose_target_has_no_named_version_serves_version_0(given):
    assert from_env({"PACELINE_TARGET_VERSION": given}) == from_env({}) == ServingConfig(target_version="0")


def test_half_of_the_memory_is_for_the_queue_half_for_the_backlog_and_a_quarter_of_a_trace_is_context():
    made = from_env({"PACELINE_CAPTURE_MEMORY_BYTES": "1001", "PACELINE_TRACE_TOKENS": "103"})
    assert (made.queue_bytes, made.backlog_bytes, made.context_tokens) == (500, 500, 25)
    made = from_env({})
    assert (made.queue_bytes, made.backlog_bytes, made.context_tokens) == (256 << 20, 256 << 20, 512)


@pytest.mark.parametrize(("value", "name"), [(None, "goodput"), ("", "goodput"), ("off", "off"), ("sweep", "sweep")])
def test_pacing_is_by_goodput_unless_said_otherwise(value, name):
    assert from_env({} if value is None else {"PACELINE_PACING": value}).pacing is PacingName(name)


def test_a_courier_has_the_settings_of_its_server_whatever_becomes_of_the_file(tmp_path):
    file = tmp_path / "paceline.toml"
    file.write_text("[serving]\ntrace_tokens = 100\ncapture_features = false\nsample_rate = 0.3\npacing = 'off'")
    environ = {"PATH": "/bin", "PACELINE_CONFIG": str(file), "PACELINE_REDIS_URL": REDIS}
    settings = from_env(environ)
    assert (settings.trace_tokens, settings.sample_rate) == (100, 0.3)
    given = courier_env(settings, environ)
    file.write_text("trace_tokens = 200\nreplica = 'b'\nbuffer_max_bytes = 5")
    assert from_env(given) == settings
    assert (given["PATH"], given["PACELINE_CONFIG"]) == ("/bin", os.devnull)


def test_a_name_that_is_no_setting_is_logged_and_capture_goes_on_as_configured(monkeypatch, caplog):
    registered = []
    registry = SimpleNamespace(register=lambda target, hook, kind: registered.append((target, kind)))
    kinds = SimpleNamespace(BEFORE="before", AROUND="around")
    module = SimpleNamespace(HookRegistry=registry, HookType=kinds)
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", module)
    monkeypatch.setenv("PACELINE_REDIS_URL", REDIS)
    monkeypatch.setenv("PACELINE_SAMPLE_RAT", "hunter2")
    plugin.register()
    assert registered == [(hook_targets.INIT_MODEL_WORKER, "before"), (hook_targets.HANDLE_REQUEST, "around")]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "PACELINE_SAMPLE_RAT: got an unknown name, expected a setting (the nearest is PACELINE_S" in caplog.text
    assert "it is ignored" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_misspelt_redis_url_is_logged_though_nothing_is_captured(monkeypatch, caplog):
    monkeypatch.delenv("PACELINE_REDIS_URL", raising=False)
    monkeypatch.setenv("PACELINE_REDIS_ULR", REDIS)
    plugin.register()
    assert "the nearest is PACELINE_REDIS_URL" in caplog.text
    assert "secret" not in caplog.text


def test_a_file_that_cannot_be_read_leaves_the_server_without_capture(monkeypatch, caplog, tmp_path):
    (tmp_path / "a.toml").write_text("passes = ")
    monkeypatch.setenv("PACELINE_CONFIG", str(tmp_path / "a.toml"))
    plugin.register()
    assert "capture and swaps are off: PACELINE_CONFIG: got " in caplog.text


@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("0", False), ("", None), (None, None)])
def test_the_switch_of_the_cpu_host_is_on_off_or_not_set(value, is_on, tmp_path):
    assert is_switched_on({} if value is None else {"PACELINE_CPU_HOST": value}) is is_on
    (tmp_path / "a.toml").write_text(f"cpu_host = {value or repr('')}")
    assert is_switched_on({"PACELINE_CONFIG": str(tmp_path / "a.toml")}) is is_on


@pytest.mark.parametrize(
    ("given", "kind"), [("captured", None), ("int8", FeatureDtype.INT8), ("fp8", FeatureDtype.E4M3), ("", None)]
)
def test_features_are_quantised_where_the_setting_says_so_and_the_courier_has_it_too(given, kind):
    settings = from_env({"PACELINE_FEATURE_FORMAT": given})
    assert settings.quantised_to is kind
    assert from_env(courier_env(settings, {})).quantised_to is kind
