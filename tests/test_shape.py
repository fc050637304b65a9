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
MAX_POSITIONAL = 5
#: The stubs keep the signatures of what they stand for; Triton gives a kernel its arguments by place.
THEIRS = ("serving/cpu_host/stubs/", "serving/capture/round_kernel.py")


def sources() -> Iterator[tuple[str, str]]:
    """Path and text of every file of Python outside tests."""
    inside = [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py")) if RESULTS not in path.parents]
    for path in (ROOT / "__init__.py", ROOT / "cli.py", *inside):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def own_style() -> Iterator[tuple[str, str]]:
    """As `sources`, without THEIRS."""
    return ((file, text) for file, text in sources() if not file.startswith(THEIRS))


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


def test_tuples_are_assigned_only_to_be_unpacked() -> None:
    """`a, b = b, a` may stay: a target that is also read on the right cannot be assigned on a line of its own."""
    packed = [
        f"{file}:{node.lineno}"
        for file, text in own_style()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
        if not {*map(ast.unparse, node.targets[0].elts)} & {*map(ast.unparse, node.value.elts)}
    ]
    assert packed == []


def test_no_call_has_six_positional_arguments() -> None:
    """Messages of a log and their figures go together, whatever their number."""
    calls = [
        f"{file}:{node.lineno}"
        for file, text in own_style()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and len(node.args) > MAX_POSITIONAL
        and not ast.unparse(node.func).startswith("_log.")
    ]
    assert calls == []


def test_structs_of_many_fields_are_keyword_only() -> None:
    structs = [
        f"{file}:{node.lineno}"
        for file, text in own_style()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and positional_fields(node) >= MAX_POSITIONAL
    ]
    assert structs == []


def positional_fields(node: ast.ClassDef) -> int:
    """Fields of a dataclass or a msgspec struct that its own body lets one give by place."""
    how = [*map(ast.unparse, [*node.decorator_list, *node.bases, *node.keywords])]
    if not any("dataclass" in part or "Struct" in part for part in how) or any("kw_only=True" in part for part in how):
        return 0
    fields = [ast.unparse(part.annotation) for part in node.body if isinstance(part, ast.AnnAssign)]
    return fields.index("KW_ONLY") if "KW_ONLY" in fields else len(fields)
