"""The last section of docs/monitoring.md is what the definitions say."""

from pathlib import Path

from paceline.cli import app
from paceline.policies.readings.page import readings_markdown
from typer.testing import CliRunner

HOUSE = Path(__file__).resolve().parents[2]


def test_the_section_is_written_from_the_definitions() -> None:
    """When this fails: put what `paceline readings` prints at the end of docs/monitoring.md."""
    assert (HOUSE / "docs" / "monitoring.md").read_text(encoding="utf-8").endswith("\n" + readings_markdown())


def test_the_command_prints_the_section() -> None:
    assert CliRunner().invoke(app, ["readings"]).output == readings_markdown()
