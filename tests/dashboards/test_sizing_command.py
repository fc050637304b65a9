"""`paceline size`: a column per fleet, unknown as a word, and the model's width from its own config.json."""

import json
from pathlib import Path

import pytest
from paceline.cli import app
from paceline.dashboards.commands.sizing import PRESETS
from paceline.dashboards.sizing_table import size_text
from paceline.learner.config import LearnerConfig
from paceline.policies.sizing import USUAL_CLAIM, Fleet, sizing
from paceline.policies.sizing_constants import ALL_CONSTANTS, BEAT_BYTES, FeatureForm
from paceline.serving.courier.heartbeat import MAX_BEAT_BYTES
from typer.testing import CliRunner, Result

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "sizing.md"


@pytest.fixture
def size(monkeypatch, tmp_path):
    """Run `paceline size`, of servers of 1,000 tokens per second, in a folder without settings."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, target: str = "8b", **env: str) -> Result:
        given = ("size", "--target", target, "--tokens-per-s", "1000", *words)
        return CliRunner().invoke(app, given, env={"COLUMNS": "100", **env})

    return run


def rows(result: Result, columns: int) -> dict[str, list[str]]:
    """Heading -> cells of a table of so many fleets; cells of one word."""
    assert result.exit_code == 0, result.output
    found = [line.split() for line in result.output.splitlines() if len(line.split()) > columns]
    return {" ".join(words[:-columns]): words[-columns:] for words in found}


def test_every_fleet_has_a_column_and_every_figure_a_row(size):
    shown = rows(size("--replicas", "64", "--replicas", "1", "--keep-s", "60"), 2)
    assert shown["servers"] == ["1", "64"]
    assert shown["output tokens per second"] == ["1,000", "64,000"]
    assert shown["tokens of traces per second"] == ["3,000", "192,000"]
    assert shown["largest PACELINE_SAMPLE_RATE"][0] == "1"
    fleet = Fleet(
        replicas=64, tokens_per_s=1000.0, prompt_tokens=512, output_tokens=256, hidden=4096, form=FeatureForm.CAPTURED
    )
    assert shown["largest PACELINE_SAMPLE_RATE"][1] == f"{sizing(fleet).largest_sample_rate:.2g}"


def test_what_nobody_measured_is_unknown_and_said_with_what_would_tell(size):
    shown = size("--replicas", "8")
    assert rows(shown, 1)["GPUs of a learner"] == rows(shown, 1)["cost per million output tokens"] == ["unknown"]
    assert "--learned-tokens-per-s" in shown.output
    told = size("--replicas", "8", "--learned-tokens-per-s", "12000")
    assert (rows(told, 1)["GPUs of a learner"], rows(told, 1)["cost per million output tokens"]) == (["2"], ["unknown"])
    assert "cost: unknown without --gpu-hour" in told.output
    # Two GPUs at 3.60 an hour, 8,000 tokens a second.
    priced = rows(size("--replicas", "8", "--learned-tokens-per-s", "12000", "--gpu-hour", "3.6"), 1)
    assert priced["cost per million output tokens"] == ["0.25"]


def test_json_has_what_was_asked_and_null_for_unknown(size):
    (found,) = json.loads(size("--replicas", "2", "--features", "int8", "--sample-rate", "0.5", "--json").stdout)
    assert (found["fleet"]["hidden"], found["fleet"]["form"], found["fleet"]["sample_rate"]) == (4096, "int8", 0.5)
    assert found["needs"]["trace_tokens_per_s"] == 2 * 1000 / 256 * 768 * 0.5
    assert found["needs"]["learner_gpus"] is found["needs"]["cost_per_million"] is None


def test_settings_in_force_are_what_servers_would_do(size):
    env = {
        "SAMPLE_RATE": "0.25",
        "STAGGER_S": "2",
        "TRACE_TOKENS": "256",
        "MIN_NEW_TRACES": "500",
        "ROUND_INTERVAL_S": "9",
    }
    (found,) = json.loads(
        size("--replicas", "1", "--json", **{f"PACELINE_{name}": text for name, text in env.items()}).stdout
    )
    fleet = found["fleet"]
    assert (fleet["sample_rate"], fleet["stagger_s"], fleet["trace_tokens"]) == (0.25, 2.0, 256)
    assert (fleet["round_traces"], fleet["round_interval_s"]) == (500, 9.0)


@pytest.mark.parametrize("config", [{"hidden_size": 640}, {"text_config": {"hidden_size": 640}}])
def test_a_folder_says_its_own_width(size, tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (found,) = json.loads(size("--replicas", "1", "--json", target=str(tmp_path)).stdout)
    assert found["fleet"]["hidden"] == 640


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"hidden_size": "4096"}', '{"hidden_size": 0}'])
def test_a_folder_that_does_not_say_is_refused_with_what_was_expected(size, tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    refused = size(target=str(tmp_path))
    assert refused.exit_code == 1
    assert "config.json" in refused.stderr
    assert "expected" in refused.stderr


def test_a_name_that_is_no_preset_is_refused_with_their_names(size):
    refused = size(target="7b")
    assert refused.exit_code == 1
    assert all(name in refused.stderr for name in PRESETS)


@pytest.mark.parametrize(
    ("count", "text"), [(0.0, "0 B"), (999.0, "999 B"), (8000.0, "8 kB"), (57.1e6, "57.1 MB"), (2.34e12, "2.34 TB")]
)
def test_bytes_have_the_unit_that_fits(count, text):
    assert size_text(count) == text


def test_the_largest_heartbeat_and_the_claim_are_the_products_own(tmp_path):
    assert BEAT_BYTES.value == MAX_BEAT_BYTES
    assert LearnerConfig(target_path=tmp_path, initial_draft=tmp_path).max_claim == USUAL_CLAIM


def test_the_manual_has_every_constant_with_its_command():
    text = DOCUMENT.read_text(encoding="utf-8")
    expected = [f"| {each.what} | {each.value:,g} {each.unit} | `{each.command}` |" for each in ALL_CONSTANTS]
    assert [row for row in expected if row not in text] == []
