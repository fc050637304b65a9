"""Sizes and names that keep every file readable in one sitting; what ruff can check is in pyproject.toml."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: What benchmarks write, which may be checkouts of other revisions; git ignores it.
RESULTS = ROOT / "benchmarks" / "results"
PRODUCT = ("buffer", "policies", "serving", "learner", "dashboards", "rig", "demo")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
EMPTY_NAMES = {word + end for word in ("util", "helper", "common", "misc", "manager", "handler") for end in ("", "s")}


def sources() -> list[Path]:
    inside = [path for name in (*PRODUCT, "benchmarks") for path in sorted((ROOT / name).rglob("*.py"))]
    return [*(path for path in inside if RESULTS not in path.parents), ROOT / "__init__.py", ROOT / "cli.py"]


def nodes(kind: type | tuple[type, ...]) -> Iterator[tuple[str, ast.AST]]:
    """Nodes of one kind with their place, in all sources."""
    for path in sources():
        file = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kind):
                yield f"{file}:{node.lineno}: {node.name}", node


def function_lengths() -> dict[str, int]:
    """Lines from `def` to the last statement, docstring included, decorators not."""
    found = nodes((ast.FunctionDef, ast.AsyncFunctionDef))
    return {where: node.end_lineno - node.lineno + 1 for where, node in found}


def words(name: str) -> set[str]:
    """Lower-case words of a snake_case or CamelCase name."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_no_file_is_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert {str(path): lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    assert {where: lines for where, lines in function_lengths().items() if lines > MAX_FUNCTION_LINES} == {}


def test_no_file_folder_or_class_is_named_after_nothing_it_does() -> None:
    paths = [path.relative_to(ROOT).as_posix() for path in sources()]
    assert [path for path in paths if words(path) & EMPTY_NAMES] == []
    assert [where for where, node in nodes(ast.ClassDef) if words(node.name) & EMPTY_NAMES] == []


@pytest.mark.parametrize("name", ["redis_utils", "common/a", "SwapManager", "HTTPHandler"])
def test_an_empty_name_is_found(name: str) -> None:
    assert words(name) & EMPTY_NAMES


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["rules", "format"])
def test_ruff_has_nothing_to_say(command: list[str]) -> None:
    ruff = [Path(sys.executable).with_name("ruff"), *command, "--no-cache", "."]
    done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_ruff_has_nothing_to_say_about_the_name_of_the_clone(tmp_path: Path) -> None:
    clone = tmp_path / "Paceline-main"
    for name in ("pyproject.toml", "__init__.py", "serving/__init__.py", "serving/courier/__main__.py"):
        copy = clone / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy)
    ruff = [Path(sys.executable).with_name("ruff"), "check", "--no-cache", "--select", "N999", "."]
    done = subprocess.run(ruff, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
