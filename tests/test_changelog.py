"""The changelog has an entry for the version that is built."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_version_of_the_package_has_an_entry() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\n## {project['version']}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
