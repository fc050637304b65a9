"""Documents name tests that exist, so that none of their claims outlives its proof."""

import ast
import re
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[1]
NOTE = HOUSE / "docs" / "threats.md"
ATTACKERS = 5


def named_tests(text: str) -> list[str]:
    """Every `path::test` of a text, in its order."""
    return re.findall(r"`(tests/[\w/]+\.py::\w+)`", text)


def lost_tests(root: Path, text: str) -> list[str]:
    """Those of them that are not there."""
    lost = []
    for name in named_tests(text):
        path, _, function = name.partition("::")
        source = (root / path).read_text(encoding="utf-8") if (root / path).is_file() else ""
        if function not in {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}:
            lost.append(name)
    return lost


def test_every_attacker_has_a_section_whose_tests_exist() -> None:
    text = NOTE.read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(sections) == ATTACKERS
    assert [section.partition("\n")[0] for section in sections if len(named_tests(section)) < 3] == []


@pytest.mark.parametrize("document", sorted((HOUSE / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_test_that_a_document_names_is_there(document: Path) -> None:
    assert lost_tests(HOUSE, document.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("`tests/test_a.py::test_x`", []),
        ("`tests/test_a.py::test_y`", ["tests/test_a.py::test_y"]),
        ("`tests/test_b.py::test_x`", ["tests/test_b.py::test_x"]),
        ("`tests/test_a.py::test_x` and\n`tests/test_a.py::x`", ["tests/test_a.py::x"]),
    ],
)
def test_a_test_that_is_not_there_is_found(tmp_path: Path, line: str, lost: list[str]) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_x(): ...\n", encoding="utf-8")
    assert lost_tests(tmp_path, line) == lost
