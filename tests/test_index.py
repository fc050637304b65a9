"""docs/index.md: one row per reader, per document and per word, and no document without its row."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
HEADINGS = ("Documents by reader", "All of them", "Words")


def rows(page: str, heading: str) -> list[str]:
    """First cells of the table under a heading, without those of its own heading."""
    _, _, after = page.partition(f"# {heading}\n")
    lines = [line for line in after.partition("\n#")[0].splitlines() if line.startswith("|")]
    return [line.split("|")[1].strip() for line in lines[2:]]


def doubled(cells: list[str]) -> list[str]:
    """Names that stand in more than one row; a row may name several, with commas."""
    names = [name.strip() for cell in cells for name in cell.split(",")]
    return sorted({name for name in names if names.count(name) > 1})


@pytest.fixture
def page() -> str:
    return (DOCS / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("heading", HEADINGS)
def test_no_row_is_there_twice(page: str, heading: str) -> None:
    cells = rows(page, heading)
    assert len(cells) > 5
    assert doubled(cells) == []


def test_every_document_has_its_row(page: str) -> None:
    named = [re.sub(r"\[(.*)\]\(\1\)", r"\1", cell) for cell in rows(page, "All of them")]
    assert sorted([*named, "index.md"]) == sorted(path.name for path in DOCS.glob("*.md"))


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ("| operate it | [b](b.md) |", ["operate it"]),
        ("| read it, operate it | b |", ["operate it"]),
        ("| read it | b |", []),
    ],
)
def test_a_doubled_row_is_found(second: str, found: list[str]) -> None:
    first = "# Documents by reader\n\n| you | read |\n|---|---|\n| operate it | [a](a.md) |"
    page = f"{first}\n{second}\n\n## Next\n\n| operate it | c |\n"
    assert doubled(rows(page, "Documents by reader")) == found
