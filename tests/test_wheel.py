"""The wheel holds every module and data file, and needs nothing but what its extras declare."""

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from wheel_build import FOLDERS, HOUSE, PROJECT, SOURCES, build_wheel, copy_tree

# Folder -> the extra that its modules need; the others need none.
EXTRAS = {"serving": "serving", "policies": "learner", "learner": "learner", "rig": "demo", "demo": "demo"}
# Part of a folder -> the extra that it needs beside its folder's.
EXTRAS_OF_PARTS = {
    "buffer.stream.payload_seal": "encryption",
    "dashboards.window": "window",
    "dashboards.exporter": "prometheus",
    "dashboards.grafana": "grafana",
    "rig.chat": "bench",
    "demo.fleet": "fleet",
}
# Brought by the environment that paceline[serving] is installed into.
ENGINE = {"sglang", "sglang-kernel", "sgl_kernel", "torch", "torchvision", "triton", "fastapi", "pydantic"}
# Stand-ins for other packages, found by the CPU host's path and never under paceline's name.
STUBS = "serving/cpu_host/stubs"
NOT_PRODUCT = {"demo", "rig"}


def build(source: Path, out: Path) -> Path:
    """Build the wheel of `source` and unzip it into `out`."""
    with zipfile.ZipFile(build_wheel(source, out.with_suffix(".wheels"))) as archive:
        archive.extractall(out)
    return out


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unzipped wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    return build(copy_tree(SOURCES, folder / "source"), folder / "unzipped")


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Dotted name below the package, "" for its root, and file of every module."""
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if path.parts[0] in {*FOLDERS, "cli.py", "__init__.py"} and not path.as_posix().startswith(STUBS):
            parts = path.with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


@cache
def third_parties(tree: ast.AST) -> set[str]:
    """Top-level names of the packages imported anywhere below `tree`, the standard library left out."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    return found - sys.stdlib_module_names


@cache
def import_time(file: Path) -> ast.Module:
    """The import statements that run when the module is imported."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])


def reached(start: str, files: dict[str, Path]) -> set[str]:
    """Modules of paceline that importing `start` imports, itself included."""
    found = set()
    left = [start]
    while left:
        name = left.pop()
        if name in files and name not in found:
            found.add(name)
            parts = name.split(".") if files[name].name == "__init__.py" else name.split(".")[:-1]
            for node in import_time(files[name]).body:
                if isinstance(node, ast.ImportFrom) and node.level:
                    base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
                    left += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return found


@cache
def declared(extra: str) -> set[str]:
    """Normalised names of what paceline, with one extra, asks for directly; extras that name paceline are opened."""
    lines = [*PROJECT["project"]["dependencies"]]
    found = set()
    extras = [extra] if extra else []
    while extras:
        lines += PROJECT["project"]["optional-dependencies"][extras.pop()]
        ours = [Requirement(line) for line in lines if Requirement(line).name == "paceline"]
        lines = [line for line in lines if Requirement(line).name != "paceline"]
        extras += [name for requirement in ours for name in requirement.extras]
    found |= {canonicalize_name(Requirement(line).name) for line in lines}
    return found


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    def files(root: Path) -> set[str]:
        """Modules, and every other file that the product reads."""
        paths = {path.relative_to(root) for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file()}
        return {path.as_posix() for path in paths if path.suffix != ".pyc" and path.name != "Dockerfile"}

    assert files(wheel / "paceline") == files(HOUSE)
    lists = {"serving/cpu_host/requirements.txt", "serving/cpu_host/requirements-0.5.23.txt"}
    assert {"buffer/stream/stream.lua", *lists, f"{STUBS}/sgl_kernel/tree.py"} <= files(HOUSE)


def test_an_extra_names_all_that_its_folder_imports() -> None:
    owners = packages_distributions()
    files = dict(sources(HOUSE))
    missing = set()
    for name, file in files.items():
        # Read by servers and learners, which have what it needs; the rest of the buffer runs without.
        folder = "serving" if name.startswith("buffer.drafts") else name.partition(".")[0]
        engine = ENGINE if folder in {"serving", "rig"} else set()
        trainer = declared("rl") if name.startswith(("demo.grpo", "serving.rollouts")) else set()
        own = set().union(*(declared(extra) for start, extra in EXTRAS_OF_PARTS.items() if name.startswith(start)))
        allowed = declared(EXTRAS.get(folder, "")) | engine | trainer | own
        trees = [
            ast.parse(file.read_text(encoding="utf-8")),
            *(import_time(files[each]) for each in reached(name, files)),
        ]
        for each in set().union(*map(third_parties, trees)) - {"paceline"} - allowed:
            if not allowed & {canonicalize_name(owner) for owner in owners.get(each, [each])}:
                missing.add(f"{name}: {each}")
    assert missing == set()


DEMO_FROM = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]  # without that of an editable install
sys.path.insert(0, sys.argv.pop(1))
from paceline.cli import app
app(["demo"])
"""


def test_the_images_install_the_product_alone(tmp_path: Path) -> None:
    texts = [(HOUSE / name / "Dockerfile").read_text(encoding="utf-8") for name in ("serving", "learner")]
    stage, same = (text.split("\nFROM ")[1] for text in texts)
    assert stage == same
    copied = [name for line in re.findall(r"^COPY (.+) \S+$", stage, re.MULTILINE) for name in line.split()]
    assert set(copied) & FOLDERS == FOLDERS - NOT_PRODUCT
    source = copy_tree(copied, tmp_path / "source")
    (edit,) = re.findall(r"^RUN (sed .*) \\$", stage, re.MULTILINE)
    subprocess.run(edit, shell=True, check=True, cwd=source)
    modules = {path.relative_to(source) for path in source.rglob("*.py")}
    image = build(source, tmp_path / "image") / "paceline"
    assert {path.relative_to(image) for path in image.rglob("*.py")} == modules
    demo = [sys.executable, "-P", "-c", DEMO_FROM, str(image.parent)]
    done = subprocess.run(demo, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("paceline: got no module paceline.demo, expected paceline[demo], by pip install ")
    assert done.stderr.count("\n") == 1
