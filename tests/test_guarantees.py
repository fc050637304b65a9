"""Every guarantee that a document states has a test, every mark a document, and docs/guarantees.md lists both."""

from pathlib import Path

from guarantees import HOUSE, findings, page

STATED = "| Redis hangs | nothing is lost | [redis-hangs](guarantees.md#redis-hangs) |\n"
MARKED = 'import pytest\n\n@pytest.mark.guarantee("{}")\ndef test_x(): ...\n'
OUT_OF_DATE = "docs/guarantees.md: is out of date; run `python tests/guarantees.py`"


def test_documents_marks_and_the_list_agree() -> None:
    assert findings(HOUSE) == []


def test_a_guarantee_without_a_test_a_mark_without_a_document_and_an_old_list_are_found(tmp_path: Path) -> None:
    for folder in ("tests", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs" / "faults.md").write_text(STATED, encoding="utf-8")
    test = tmp_path / "tests" / "test_a.py"
    test.write_text(MARKED.format("redis-hangs"), encoding="utf-8")
    assert findings(tmp_path) == [OUT_OF_DATE]
    (tmp_path / "docs" / "guarantees.md").write_text(page(tmp_path), encoding="utf-8")
    assert findings(tmp_path) == []
    test.write_text(MARKED.format("redis-dies"), encoding="utf-8")
    assert findings(tmp_path) == [
        OUT_OF_DATE,
        "redis-dies: marked on ['tests/test_a.py::test_x'], stated in no document",
        "redis-hangs: stated in ['faults.md'], marked on no test",
    ]
