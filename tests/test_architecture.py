"""Who may import whom: the contracts are in pyproject.toml, and import-linter holds the product to them.

What it cannot say is checked here: imports inside paceline are relative, none is hidden in a call of `__import__` (ruff
bans `import_module`), the environment is read by a `config.py` alone, and a package's `__init__.py` describes it.
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
RESULTS = ROOT / "benchmarks" / "results"  # of runs on this machine, other revisions among them
PACKAGES = ("buffer", "policies", "serving", "learner", "dashboards", "rig", "demo", "benchmarks")
OUR_NAMES = {"paceline", "cli", *PACKAGES}
ENVIRONMENT = {f"os.{name}" for name in ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")}


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
    left_out = shutil.ignore_patterns("__pycache__", "results")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / "paceline" / name, ignore=left_out)
    for name in ("__init__.py", "cli.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / "paceline" / name)
    return tmp_path


def test_every_contract_is_kept(checkout: Path) -> None:
    assert broken_contracts(checkout) == ""


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("buffer/trace.py", "from ..policies import acceptance", "Packages import downwards"),
        ("demo/view.py", "from ..benchmarks import swap", "Packages import downwards"),
        ("benchmarks/swap.py", "from ..demo import view", "Packages import downwards"),
        ("serving/config.py", "def f():\n    from ..learner import intake", "Packages import downwards"),
        ("learner/claim/intake.py", "from ..serving.wire import messages", "Packages import downwards"),
        ("policies/promotion.py", "from ..buffer import redis_stream", "Policies see"),
        ("policies/promotion.py", "import httpx", "Policies see"),
        ("policies/promotion.py", "from ..buffer import trace_codec", "Of the buffer"),
        ("policies/objectives/spec.py", "from ...buffer.settings.table import SETTINGS", "Of the buffer"),
        ("serving/wire/counts.py", "from ..courier import courier", "imports what imports it"),
        ("serving/courier/courier.py", "from ..swap import staging", "no tensor library"),
        ("learner/round/loop.py", "import sglang", "SGLang is known"),
        ("serving/watch/engine_monitor.py", "import torch", "no tensor library"),
        ("serving/pacing/choice.py", "import torch", "touches tensors in these files"),
        ("serving/replica.py", "from .courier import split", "The scheduler process starts"),
        ("serving/capture/outbox.py", "from ..watch import engine_monitor", "The scheduler process starts"),
        ("learner/round/loop.py", "from celery import Celery", "Celery is known"),
        ("rig/services.py", "import celery", "Celery is known"),
        ("serving/rollouts/trl.py", "def f():\n    import trl", "A trainer is known"),
        ("serving/rollouts/rollouts.py", "import torch", "touches tensors in these files"),
        ("serving/rollouts/rollouts.py", "import celery", "Celery is known"),
        ("learner/claim/intake.py", "import redis", "Redis is known"),
        ("serving/wire/messages.py", "import zmq", "ZeroMQ is known"),
        ("dashboards/tables.py", "import prometheus_client", "Prometheus is known"),
        ("policies/guard.py", "from river.drift import ADWIN", "River is known"),
        ("learner/delivery/delivery.py", "def f():\n    import mlflow", "MLflow is imported by name"),
    ],
)
def test_an_import_against_a_contract_is_found(checkout: Path, file: str, line: str, contract: str) -> None:
    with (checkout / "paceline" / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")
    _, _, details = broken_contracts(checkout).partition("Broken contracts")
    assert contract in details


def sources() -> Iterator[tuple[str, ast.Module]]:
    found = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py") if RESULTS not in path.parents]
    for path in sorted([ROOT / "cli.py", *found]):
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


def hidden_imports(tree: ast.Module) -> int:
    """How often `__import__` is named: what it imports, no analysis sees."""
    return sum(
        isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).endswith("__import__")
        for node in ast.walk(tree)
    )


def test_no_import_is_hidden_from_the_contracts() -> None:
    assert [file for file, tree in sources() if hidden_imports(tree)] == []
    planted = ast.parse("__import__('redis')\nbuiltins.__import__('redis')\nload = __import__\nimport redis")
    assert hidden_imports(planted) == 3


def environment_reads(tree: ast.Module) -> list[str]:
    """Uses of the environment other than passing it on whole: `f(os.environ)`, `{**os.environ}`."""
    passed_on: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            passed_on |= {id(value) for value in (*node.args, *(keyword.value for keyword in node.keywords))}
        elif isinstance(node, ast.Dict):
            passed_on |= {id(value) for key, value in zip(node.keys, node.values, strict=True) if key is None}
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and id(node) not in passed_on]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "os"]
    names = [ast.unparse(node) for node in named] + [f"os.{alias.name}" for node in imports for alias in node.names]
    return [name for name in names if name in ENVIRONMENT]


def test_what_ruff_lets_name_the_environment_passes_it_on_whole() -> None:
    # Ruff's ban has exceptions by file, for other banned names as well: see TID251 in pyproject.toml.
    read = {file: environment_reads(tree) for file, tree in sources() if not file.endswith("config.py")}
    assert {file: names for file, names in read.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("run(os.environ, env={**os.environ, 'A': 'b'})", []),
        ("x = os.environ['A']", ["os.environ"]),
        ("x = os.environ.get('A')", ["os.environ"]),
        ("f(os.getenv('A'))", ["os.getenv"]),
        ("os.putenv('A', 'b')", ["os.putenv"]),
        ("from os import environb", ["os.environb"]),
    ],
)
def test_a_read_of_the_environment_is_found(source: str, names: list[str]) -> None:
    assert environment_reads(ast.parse(source)) == names


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_describes_itself_and_runs_nothing(name: str) -> None:
    tree = ast.parse((ROOT / name / "__init__.py").read_text(encoding="utf-8"))
    assert 3 <= len((ast.get_docstring(tree) or "").splitlines()) <= 8
    assert len(tree.body) == 1
