"""The README's journey of one trace names functions that exist, so that a newcomer can follow it by path."""

import ast
import re
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[1]
HEADING = "The journey of one trace"
STOPS = 8


def journey(readme: str) -> list[str]:
    """`path:symbol` of every numbered item under the heading, up to the next heading."""
    section = re.search(rf"^#+ {HEADING}\s*$(.*?)(?=^#|\Z)", readme, re.MULTILINE | re.DOTALL)
    items = re.findall(r"^\d+\.\s+(.*)$", section.group(1) if section else "", re.MULTILINE)
    marks = [re.match(r"`([^`]+)`", item) for item in items]
    return [mark.group(1) if mark else item for mark, item in zip(marks, items, strict=True)]


def symbols(source: str) -> set[str]:
    """Functions and classes of a module by name, methods as Class.method."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def lost_stops(root: Path, readme: str) -> list[str]:
    """Stops of the journey that name a file or a symbol which is not there."""
    lost = []
    for stop in journey(readme):
        path, _, symbol = stop.partition(":")
        file = root / path
        if not file.is_file() or symbol not in symbols(file.read_text(encoding="utf-8")):
            lost.append(stop)
    return lost


def test_the_journey_has_eight_stops_and_each_exists() -> None:
    readme = (HOUSE / "README.md").read_text(encoding="utf-8")
    assert len(journey(readme)) == STOPS
    assert lost_stops(HOUSE, readme) == []


@pytest.mark.parametrize(
    ("item", "lost"),
    [
        ("`a.py:f` takes it", []),
        ("`a.py:Box.put` keeps it", []),
        ("`a.py:g` is gone", ["a.py:g"]),
        ("`a.py:Box.get` is gone", ["a.py:Box.get"]),
        ("`b.py:f` is gone", ["b.py:f"]),
        ("`a.py` names no function", ["a.py"]),
        ("no path at all", ["no path at all"]),
    ],
)
def test_a_stop_that_names_nothing_is_found(tmp_path: Path, item: str, lost: list[str]) -> None:
    (tmp_path / "a.py").write_text("def f(): ...\nclass Box:\n    def put(self): ...\n", encoding="utf-8")
    readme = f"# paceline\n\n1. `other.py:x`\n\n## {HEADING}\n\nIn order:\n\n1. {item}\n\n## Next\n\n1. `other.py:y`\n"
    assert lost_stops(tmp_path, readme) == lost
