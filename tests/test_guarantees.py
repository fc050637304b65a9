"""Every guarantee that a document states has a test, every mark a document, and docs/guarantees.md lists both."""

from pathlib import Path

import pytest
from guarantees import HOUSE, findings, marked, page

OUT_OF_DATE = "docs/guarantees.md: is out of date; run `python tests/guarantees.py`"
ATTACKERS = 5
A_TEST = 'import pytest\n\n@pytest.mark.guarantee("{}")\ndef test_x(): ...\n'
STATED = "| Redis hangs | nothing is lost | [redis-hangs](guarantees.md#redis-hangs) |\n"


def test_documents_marks_and_the_list_agree() -> None:
    assert findings(HOUSE) == []


def test_there_is_a_guarantee_per_alarm_and_more_than_fifty_in_all() -> None:
    from paceline.policies.guard import AlarmName

    slugs = marked(HOUSE).keys()
    assert {f"alarm-{name.value.replace('_', '-')}" for name in AlarmName} <= slugs
    assert len(slugs) > 50


def test_every_attacker_has_a_section_with_guarantees() -> None:
    sections = (HOUSE / "docs" / "threats.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(sections) == ATTACKERS
    assert [section.partition("\n")[0] for section in sections if section.count("(guarantees.md#") < 3] == []


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A repository with one guarantee, its test and the list."""
    (tmp_path / "tests" / "e2e").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "faults.md").write_text(STATED, encoding="utf-8")
    (tmp_path / "tests" / "e2e" / "test_a.py").write_text(A_TEST.format("redis-hangs"), encoding="utf-8")
    (tmp_path / "docs" / "guarantees.md").write_text(page(tmp_path), encoding="utf-8")
    return tmp_path


def test_a_guarantee_with_its_test_in_the_list_is_content(house: Path) -> None:
    assert findings(house) == []
    assert "- `tests/e2e/test_a.py::test_x`" in (house / "docs" / "guarantees.md").read_text(encoding="utf-8")


def test_a_stated_guarantee_without_a_test_is_found(house: Path) -> None:
    (house / "tests" / "e2e" / "test_a.py").write_text("def test_x(): ...\n", encoding="utf-8")
    assert findings(house) == [OUT_OF_DATE, "redis-hangs: stated in ['faults.md'], marked on no test"]


def test_a_mark_that_no_document_states_is_found(house: Path) -> None:
    (house / "tests" / "test_b.py").write_text(A_TEST.format("redis-dies"), encoding="utf-8")
    assert findings(house) == [
        OUT_OF_DATE,
        "redis-dies: marked on ['tests/test_b.py::test_x'], stated in no document",
    ]


def test_a_renamed_test_makes_the_list_out_of_date(house: Path) -> None:
    renamed = A_TEST.format("redis-hangs").replace("test_x", "test_y")
    (house / "tests" / "e2e" / "test_a.py").write_text(renamed, encoding="utf-8")
    assert findings(house) == [OUT_OF_DATE]
