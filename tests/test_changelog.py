"""The tables of renames in CHANGELOG.md lead to files and names that exist, away from ones that do not."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PATHS, NAMES = "| old | new |", "| module (new path) | old | new |"


def tables(page: str, heading: str) -> list[list[list[str]]]:
    """Rows of every table with this heading, as lists of what each cell has in backticks."""
    found = re.findall(rf"^{re.escape(heading)}\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    return [[re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:-1]] for row in "".join(found).splitlines()]


def defined(file: Path) -> set[str]:
    """Functions, classes and variables at the top level of a module."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def exists(root: Path, place: str) -> bool:
    """Whether a path is there and, after a colon, any of the names that it is said to define."""
    path, _, names = place.partition(":")
    return (root / path).exists() and (not names or bool(defined(root / path) & set(names.split(", "))))


def false_paths(root: Path, page: str) -> list[str]:
    """Old paths that are still there, and new ones that are not."""
    rows = tables(page, PATHS)
    stale = [place for old, _ in rows for place in old if exists(root, place)]
    return stale + [place for _, new in rows for place in new if not exists(root, place)]


def false_names(root: Path, page: str) -> list[str]:
    """Old names that a module still has, new ones that none of the modules has, and modules that are not there."""
    found = []
    for modules, old, new in tables(page, NAMES):
        found += [module for module in modules if not (root / module).is_file()]
        has = {name for module in modules if (root / module).is_file() for name in defined(root / module)}
        found += [name for name in old if name in has] + [name for name in new if name not in has]
    return found


def renames() -> str:
    """The part of the changelog that lists renamed files and names; settings have a table of their own above it."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("## Renames in this release")[2]


def test_every_row_of_every_table_is_read() -> None:
    rows = len(re.findall(r"^\| `", renames(), re.MULTILINE))
    assert rows > 150
    assert len(tables(renames(), PATHS)) + len(tables(renames(), NAMES)) == rows


def test_renamed_files_are_where_the_changelog_says() -> None:
    assert false_paths(ROOT, renames()) == []


def test_renamed_names_are_where_the_changelog_says() -> None:
    assert false_names(ROOT, renames()) == []


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("| `gone.py` | `a.py` |", []),
        ("| `a.py:g` | `a.py:f` |", []),
        ("| `gone.py` | none: nobody used it |", []),
        ("| `a.py` | `b/` |", ["a.py"]),
        ("| `a.py:g, f` | `b/` |", ["a.py:g, f"]),
        ("| `gone.py`, `lost.py` | `c.py`, for both |", ["c.py"]),
    ],
)
def test_a_false_path_is_found(tmp_path: Path, row: str, found: list[str]) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.py").write_text("def f(): ...\n", encoding="utf-8")
    assert false_paths(tmp_path, f"text\n\n{PATHS}\n|---|---|\n{row}\n\nmore\n") == found


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("| `a.py` | `g`, `old.f` | `f`, `C` |", []),
        ("| `a.py` | `f` | `C` |", ["f"]),
        ("| `a.py` | `g` | `h` |", ["h"]),
        ("| `c.py` | `g` | none |", ["c.py"]),
    ],
)
def test_a_false_name_is_found(tmp_path: Path, row: str, found: list[str]) -> None:
    (tmp_path / "a.py").write_text("def f(): ...\nC: int = 1\n", encoding="utf-8")
    assert false_names(tmp_path, f"{NAMES}\n|---|---|---|\n{row}\n") == found
