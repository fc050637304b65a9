"""What `paceline settings` and docs/settings.md show: every setting, where it comes from, and no secret."""

import re
from pathlib import Path

from paceline.buffer.settings.listing import settings_json, settings_lines, settings_markdown
from paceline.buffer.settings.sources import is_reserved, read_settings
from paceline.buffer.settings.table import SETTINGS

HOUSE = Path(__file__).resolve().parents[3]
FOLDERS = ("buffer", "policies", "serving", "learner", "dashboards", "rig", "demo", "benchmarks", "docs")
#: What benches keep, checkouts of other commits among it.
KEPT = HOUSE / "benchmarks" / "results"
ROOT_FILES = ("cli.py", "README.md", "CHANGELOG.md", "Makefile", "docker-compose.yml", ".ci/run")


def test_a_line_shows_the_value_its_unit_and_where_it_comes_from(tmp_path):
    (tmp_path / "a.toml").write_text("passes = 7")
    env = {"PACELINE_CONFIG": str(tmp_path / "a.toml"), "PACELINE_STAGGER_S": "2.5"}
    lines = {words[0]: words[1:] for words in map(str.split, settings_lines(read_settings(env))) if words}
    assert lines["PACELINE_PASSES"] == ["file", "7", "passes"]
    assert lines["PACELINE_STAGGER_S"] == ["environment", "2.5", "s"]
    assert lines["PACELINE_KEPT_VERSIONS"] == ["default", "8", "versions"]
    assert {row.variable for row in SETTINGS} <= lines.keys()


def test_json_has_every_setting_with_its_own_type():
    rows = {row["name"]: row for row in settings_json(read_settings({"PACELINE_TARGET_VERSIONS": "1,2"}))}
    assert list(rows) == [row.variable for row in SETTINGS]
    passes = {"name": "PACELINE_PASSES", "read_by": "learner", "value": 4, "unit": "passes", "from": "default"}
    assert rows["PACELINE_PASSES"] == passes
    values = {
        name: rows[f"PACELINE_{name}"]["value"] for name in ("CAPTURE_FEATURES", "STAGGER_S", "PACING", "REPLICA")
    }
    assert values == {"CAPTURE_FEATURES": True, "STAGGER_S": 5.0, "PACING": "goodput", "REPLICA": None}
    assert rows["PACELINE_TARGET_VERSIONS"]["value"] == ("1", "2")


def test_secrets_are_masked():
    env = {
        "PACELINE_REDIS_URL": "rediss://me:hunter2@h:1/0",
        "PACELINE_MLFLOW_URI": "https://me:hunter2@mlflow",
        "PACELINE_OPERATOR_TOKEN": "hunter2-hunter2-hunter2",
    }
    settings = read_settings(env)
    text = "\n".join(settings_lines(settings))
    assert "hunter2" not in text + repr(settings_json(settings))
    assert "rediss://me:***@h:1/0" in text
    assert "https://me:***@mlflow" in text


def test_the_manual_is_what_the_table_says():
    """When this fails: `paceline settings --markdown > docs/settings.md`."""
    assert (HOUSE / "docs" / "settings.md").read_text(encoding="utf-8") == settings_markdown()


def strangers(text: str) -> set[str]:
    """PACELINE_ names of a text that are no settings; `PACELINE_CI_*` and the like name a whole family."""
    known = {row.variable for row in SETTINGS}
    named = set(re.findall(r"\bPACELINE_[A-Z0-9_]*[A-Z0-9](?![A-Za-z0-9_])", text))
    return {name for name in named - known if not is_reserved(name)}


def named_files() -> list[Path]:
    every = [path for room in FOLDERS for path in sorted((HOUSE / room).rglob("*")) if path.suffix in {".py", ".md"}]
    inside = [path for path in every if not path.is_relative_to(KEPT)]
    workflows = sorted((HOUSE / ".github").rglob("*.yml"))
    roots = [HOUSE / name for name in ROOT_FILES if (HOUSE / name).exists()]
    return [*inside, *workflows, *roots, *sorted(HOUSE.glob("*/Dockerfile"))]


def test_every_name_in_code_documents_compose_and_ci_is_a_setting_or_reserved():
    found = {}
    for path in named_files():
        name = path.relative_to(HOUSE).as_posix()
        if lost := strangers(path.read_text(encoding="utf-8")):
            found[name] = lost
    assert found == {}
