"""Policies judge what they are given: no clock, no file, no socket, no randomness that nobody passed in."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[1]

# Standard library a policy may use: arithmetic and containers, nothing that reads the world.
PURE_MODULES = """__future__ abc bisect collections dataclasses enum fractions functools hashlib heapq itertools
    math operator statistics typing"""
IMPURE_CALLS = "open print input exec eval breakpoint __import__"
IMPURE_NUMPY = "load save savez savez_compressed loadtxt savetxt genfromtxt fromfile memmap"
IMPURE_TORCH = """load save seed manual_seed rand rand_like randn randn_like randint randint_like randperm
    multinomial bernoulli normal"""


def impure_imports(node: ast.AST) -> Iterator[str]:
    """What an import line brings in that reads the world; relative imports are test_architecture's."""
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    for name in names:
        top = name.split(".")[0]
        is_worldly = top in sys.stdlib_module_names and top not in PURE_MODULES.split()
        if is_worldly or (name.startswith("numpy.random") and name != "numpy.random.Generator"):
            yield f"imports {name}"


def impure_calls(node: ast.AST) -> Iterator[str]:
    """A call that reads the world or draws from a generator nobody passed in."""
    if not isinstance(node, ast.Call):
        return
    dotted = ast.unparse(node.func)
    first, _, rest = dotted.partition(".")
    if (
        dotted in IMPURE_CALLS.split()
        or (first in {"np", "numpy"} and (rest in IMPURE_NUMPY.split() or rest.startswith("random.")))
        or (first == "torch" and rest in IMPURE_TORCH.split() and not any(k.arg == "generator" for k in node.keywords))
    ):
        yield f"calls {dotted}"


def impure_policies(root: Path) -> list[str]:
    found = []
    for path in sorted((root / "policies").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(root).as_posix()}:{getattr(node, 'lineno', 0)}"
            found += [f"{where}: {finding}" for finding in (*impure_imports(node), *impure_calls(node))]
    return found


def plant(root: Path, source: str) -> Path:
    (root / "policies").mkdir()
    (root / "policies" / "a.py").write_text(source, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("import time", "imports time"),
        ("import os.path", "imports os.path"),
        ("def f():\n    from socket import socket", "imports socket.socket"),
        ("import random", "imports random"),
        ("from numpy.random import default_rng", "imports numpy.random.default_rng"),
        ("np.random.default_rng(0)", "calls np.random.default_rng"),
        ("x.f(numpy.load('x'))", "calls numpy.load"),
        ("open('x')", "calls open"),
        ("print('x')", "calls print"),
        ("torch.rand(3)", "calls torch.rand"),
    ],
)
def test_a_planted_impurity_is_found_and_named(tmp_path: Path, source: str, finding: str) -> None:
    findings = impure_policies(plant(tmp_path, source))
    assert [line.partition(": ")[2] for line in findings] == [finding]


def test_arithmetic_and_a_generator_that_was_passed_in_are_pure(tmp_path: Path) -> None:
    source = "import math\nimport numpy as np\ndef f(rng: np.random.Generator):\n    return rng.random()\n"
    assert impure_policies(plant(tmp_path, source + "torch.rand(3, generator=g)\n")) == []


def test_the_policies_are_pure() -> None:
    assert impure_policies(HOUSE) == []
