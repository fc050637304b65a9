"""Policies judge what they are given: no clock, no file, no socket, no randomness that was not passed in."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

POLICIES = Path(__file__).resolve().parents[1] / "policies"

#: Standard library a policy may use: arithmetic, containers and text, nothing that reads the world.
PURE_MODULES = """__future__ abc bisect collections dataclasses enum fractions functools hashlib heapq itertools
    math operator re statistics typing"""
IMPURE_CALLS = "open print input exec eval breakpoint __import__"
IMPURE_NUMPY = "load save savez savez_compressed loadtxt savetxt genfromtxt fromfile memmap"
IMPURE_TORCH = """load save seed manual_seed rand rand_like randn randn_like randint randint_like randperm
    multinomial bernoulli normal"""


def impure_imports(node: ast.AST) -> Iterator[str]:
    """Modules an import statement brings in that read the world."""
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    for name in names:
        top = name.split(".")[0]
        is_worldly = top in sys.stdlib_module_names and top not in PURE_MODULES.split()
        if is_worldly or (name.startswith("numpy.random") and name != "numpy.random.Generator"):
            yield name


def impure_calls(node: ast.AST) -> Iterator[str]:
    """A call that reads the world or draws from a generator that was not passed in."""
    if not isinstance(node, ast.Call):
        return
    dotted = ast.unparse(node.func)
    first, _, rest = dotted.partition(".")
    if (
        dotted in IMPURE_CALLS.split()
        or (first in {"np", "numpy"} and (rest in IMPURE_NUMPY.split() or rest.startswith("random.")))
        or (first == "torch" and rest in IMPURE_TORCH.split() and not any(k.arg == "generator" for k in node.keywords))
    ):
        yield dotted


def impurities(source: str) -> list[str]:
    return [name for node in ast.walk(ast.parse(source)) for name in (*impure_imports(node), *impure_calls(node))]


@pytest.mark.parametrize("path", sorted(POLICIES.rglob("*.py")), ids=lambda path: path.stem)
def test_a_policy_is_pure(path: Path) -> None:
    assert impurities(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "name", ["time", "os.path", "numpy.random.default_rng", "np.random.default_rng", "open", "torch.rand"]
)
def test_an_impurity_is_found(name: str) -> None:
    is_call = name.startswith(("np.", "torch.", "open"))
    assert impurities(f"{name}(0)" if is_call else f"def f():\n    import {name}") == [name]


def test_arithmetic_and_a_generator_that_was_passed_in_are_pure() -> None:
    source = "import math\ndef f(rng: np.random.Generator):\n    return rng.random()\ntorch.rand(3, generator=g)\n"
    assert impurities(source) == []
