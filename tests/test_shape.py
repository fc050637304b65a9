"""Files and functions short enough to be read in one sitting; the rest of the style is held by ruff."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What benchmarks write, which may be checkouts of other revisions; git ignores it.
RESULTS = ROOT / "benchmarks" / "results"
FOLDERS = ("buffer", "policies", "serving", "learner", "dashboards", "rig", "demo", "benchmarks")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def sources() -> Iterator[tuple[str, str]]:
    """Path and text of every file of Python outside tests."""
    inside = [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py")) if RESULTS not in path.parents]
    for path in (ROOT / "__init__.py", ROOT / "cli.py", *inside):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def test_no_file_is_long() -> None:
    assert [file for file, text in sources() if len(text.splitlines()) > MAX_FILE_LINES] == []


def test_no_function_is_long() -> None:
    functions = [
        (f"{file}:{node.lineno}", node.end_lineno - node.lineno + 1)
        for file, text in sources()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [where for where, lines in functions if lines > MAX_FUNCTION_LINES] == []
