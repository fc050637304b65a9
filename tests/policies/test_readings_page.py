"""docs/readings.md is what the definitions say."""

from pathlib import Path

from paceline.cli import app
from paceline.policies.readings.page import readings_markdown
from typer.testing import CliRunner

HOUSE = Path(__file__).resolve().parents[2]


def test_the_page_is_written_from_the_definitions() -> None:
    """When this fails: `paceline readings > docs/readings.md`."""
    assert (HOUSE / "docs" / "readings.md").read_text(encoding="utf-8") == readings_markdown()


def test_the_command_prints_the_page() -> None:
    assert CliRunner().invoke(app, ["readings"]).output == readings_markdown()
