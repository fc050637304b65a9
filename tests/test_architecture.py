"""Who may import whom: the contracts are in pyproject.toml, and import-linter holds the product to them.

What it cannot say is checked here: imports inside paceline are relative, and a package's `__init__.py` describes it.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import paceline
import pytest

ROOT = Path(paceline.__file__).resolve().parent
PACKAGES = ("buffer", "policies", "drafts", "serving", "learner", "dashboards", "rig", "demo", "benchmarks")
OUR_NAMES = {"paceline", "cli", *PACKAGES}


def broken_contracts(folder: Path) -> str:
    """What import-linter says of the package `paceline` in `folder`; empty while every contract is kept."""
    command = [Path(sys.executable).with_name("lint-imports"), "--config", folder / "paceline/pyproject.toml"]
    done = subprocess.run(
        [*command, "--no-cache", "--no-logo"],
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the product's sources that a test may spoil, in a folder of the package's name."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / "paceline" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "cli.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "paceline" / name)
    return tmp_path


def test_every_contract_is_kept(checkout: Path) -> None:
    assert broken_contracts(checkout) == ""


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("buffer/trace.py", "from ..policies import acceptance", "Packages import downwards"),
        ("serving/config.py", "def f():\n    from ..learner import intake", "Packages import downwards"),
        ("learner/intake.py", "from ..serving.wire import messages", "Packages import downwards"),
        ("policies/promotion.py", "from ..buffer import redis_stream", "Policies see"),
        ("serving/wire/counts.py", "from ..courier import courier", "imports what imports it"),
        ("serving/courier/courier.py", "from ..swap import staging", "no tensor library"),
        ("learner/loop.py", "import sglang", "SGLang is known"),
        ("serving/watch/engine_monitor.py", "import torch", "no tensor library"),
        ("serving/pacing/choice.py", "import torch", "touches tensors in these files"),
        ("learner/loop.py", "from celery import Celery", "Celery is known"),
    ],
)
def test_an_import_against_a_contract_is_found(checkout: Path, file: str, line: str, contract: str) -> None:
    with (checkout / "paceline" / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")
    _, _, details = broken_contracts(checkout).partition("Broken contracts")
    assert contract in details


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted([ROOT / "cli.py", *(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))]):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def absolute_imports(tree: ast.Module) -> Iterator[str]:
    """`import paceline...`, and `import buffer...`, which works from the checkout's root alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if node.level == 0 else []
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (name for name in names if name.split(".")[0] in OUR_NAMES)


def test_imports_inside_the_product_are_relative() -> None:
    assert [(file, name) for file, tree in sources() for name in absolute_imports(tree)] == []
    planted = ast.parse(
        "import paceline\nfrom buffer.trace import T\nfrom .buffer import x\ndef f():\n    import rig.runs"
    )
    assert list(absolute_imports(planted)) == ["paceline", "buffer.trace", "rig.runs"]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_describes_itself_and_runs_nothing(name: str) -> None:
    tree = ast.parse((ROOT / name / "__init__.py").read_text(encoding="utf-8"))
    assert 3 <= len((ast.get_docstring(tree) or "").splitlines()) <= 8
    assert len(tree.body) == 1
