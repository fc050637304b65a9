"""The in-memory twins serve tests alone: nothing in the product imports them."""

import ast
from pathlib import Path

import paceline

PRODUCT = Path(paceline.__file__).parent
NOT_PRODUCT = {"tests", "benchmarks", "docs"}


def imports_twins(source: str) -> bool:
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in imports for alias in node.names]
    names += [node.module or "" for node in imports if isinstance(node, ast.ImportFrom)]
    return any("testing" in name.split(".") for name in names)


def test_no_module_of_the_product_imports_the_twins():
    folders = [path for path in PRODUCT.iterdir() if path.is_dir() and path.name not in NOT_PRODUCT]
    files = [*PRODUCT.glob("*.py"), *(file for path in folders if path.name[0] != "." for file in path.rglob("*.py"))]
    checked = [file for file in files if "testing" not in file.parts]
    assert len(checked) > 100
    assert [str(file) for file in checked if imports_twins(file.read_text(encoding="utf-8"))] == []


def test_an_import_of_the_twins_is_found_however_it_is_written():
    assert imports_twins("from ..buffer.testing.memory_board import MemoryVersionBoard")
    assert imports_twins("def f():\n    from ..buffer import testing")
    assert imports_twins("import paceline.buffer.testing.memory_stream")
    assert not imports_twins("from ..buffer.base import TraceBuffer  # testing")
