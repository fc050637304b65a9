"""Size, names and contracts of the house: what keeps every file readable in one sitting.

Every rule is a function from a root folder to a list of findings, as in test_architecture.py.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

HOUSE = Path(__file__).resolve().parents[1]
ROOMS = ("buffer", "policies", "serving", "learner", "dashboards", "demo")
MAX_FILE_LINES = 250
MAX_FUNCTION_LINES = 50
MAX_MEDIAN_FUNCTION_LINES = 10
EMPTY_NAMES = {word + end for word in ("util", "helper", "common", "misc", "manager", "handler") for end in ("", "s")}
ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"}
# Stand-ins for other people's packages: names and signatures are theirs.
STUBS = "serving/cpu_host/stubs/"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(root: Path) -> Iterator[tuple[str, str]]:
    inside = [path for room in ROOMS for path in sorted((root / room).rglob("*.py"))]
    for path in inside + [root / name for name in ("__init__.py", "cli.py") if (root / name).exists()]:
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def functions(root: Path) -> Iterator[tuple[str, Function]]:
    for file, source in sources(root):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, Function):
                yield f"{file}:{node.lineno}", node


def length(node: Function) -> int:
    """Lines from `def` to the last statement, docstring included, decorators not."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def long_files(root: Path) -> list[str]:
    counts = [(file, len(source.splitlines())) for file, source in sources(root)]
    return [f"{file}: {lines} lines" for file, lines in counts if lines > MAX_FILE_LINES]


def long_functions(root: Path) -> list[str]:
    found = [(where, node.name, length(node)) for where, node in functions(root)]
    return [f"{where}: {name} has {lines} lines" for where, name, lines in found if lines > MAX_FUNCTION_LINES]


def long_median(root: Path) -> list[str]:
    middle = median([length(node) for _, node in functions(root)] or [0])
    return [f"*: median function has {middle:g} lines"] if middle > MAX_MEDIAN_FUNCTION_LINES else []


def words(name: str) -> set[str]:
    """Lower-case words of a snake_case or CamelCase name."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def empty_names(root: Path) -> list[str]:
    """Files, folders and classes named after nothing they do."""
    found = []
    for file, source in sources(root):
        found += [f"{file}: path says {word}" for word in sorted(words(file) & EMPTY_NAMES)]
        classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
        found += [f"{file}:{node.lineno}: class {node.name}" for node in classes if words(node.name) & EMPTY_NAMES]
    return found


def handed_on(tree: ast.Module) -> set[int]:
    """Nodes passed whole to a call or copied whole into a mapping: `f(os.environ)`, `{**os.environ}`."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found |= {id(value) for value in (*node.args, *(keyword.value for keyword in node.keywords))}
        elif isinstance(node, ast.Dict):
            found |= {id(value) for key, value in zip(node.keys, node.values, strict=True) if key is None}
    return found


def environment_readers(root: Path) -> list[str]:
    """Reads of the environment outside a config.py. Where rooms are wired it may be handed on, whole and unread."""
    found = []
    for file, source in sources(root):
        if file.endswith("/config.py") or file.startswith(STUBS):
            continue
        tree = ast.parse(source)
        unread = handed_on(tree) if file.startswith(("cli.py", "demo/")) else set()
        for node in ast.walk(tree):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) and id(node) not in unread else ""
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                name = next((f"os.{alias.name}" for alias in node.names if f"os.{alias.name}" in ENVIRONMENT), "")
            if name in ENVIRONMENT:
                found.append(f"{file}:{getattr(node, 'lineno', 0)}: {name}")
    return found


def without_return_types(root: Path) -> list[str]:
    bare = [(where, node) for where, node in functions(root) if node.returns is None]
    return [f"{where}: {node.name} -> ?" for where, node in bare if not where.startswith(STUBS)]


def contract_methods(root: Path, file: str) -> set[str]:
    """Methods documented in base.py of the same room: an implementation need not repeat the contract."""
    base = root / Path(file).parts[0] / "base.py"
    if not base.is_file():
        return set()
    documented = [node for node in ast.walk(ast.parse(base.read_text(encoding="utf-8"))) if isinstance(node, Function)]
    return {node.name for node in documented if ast.get_docstring(node)}


def public_nodes(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | Function, bool]]:
    """Public classes and functions of a module, and public methods of its public classes (marked True)."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield node, False
            members = node.body if isinstance(node, ast.ClassDef) else []
            yield from ((m, True) for m in members if isinstance(m, Function) and not m.name.startswith("_"))


def without_docstrings(root: Path) -> list[str]:
    found = []
    for file, source in sources(root):
        if file.startswith(STUBS):
            continue
        tree = ast.parse(source)
        found += [] if ast.get_docstring(tree) else [f"{file}: module without docstring"]
        contract = contract_methods(root, file)
        found += [
            f"{file}:{node.lineno}: {node.name} without docstring"
            for node, is_method in public_nodes(tree)
            if not ast.get_docstring(node) and not (is_method and node.name in contract)
        ]
    return found


Rule = Callable[[Path], list[str]]
RULES: tuple[Rule, ...] = (
    long_files,
    long_functions,
    long_median,
    empty_names,
    environment_readers,
    without_return_types,
    without_docstrings,
)

DOC = '"""Says something."""\n'
LAWFUL = {
    "buffer/base.py": DOC + 'class Box:\n    """A box."""\n    def put(self) -> None:\n        """Put."""\n',
    "buffer/testing/memory_stream.py": DOC
    + 'class Memory:\n    """Twin."""\n    def put(self) -> None: ...\n    def _x(self) -> None: ...',
    "learner/config.py": DOC + "import os\nHOME = os.environ['HOME']\n",
    "serving/cpu_host/stubs/theirs/__init__.py": "def f(x): return x\n",
    "cli.py": DOC + 'def main() -> None:\n    """Run."""\n' + "    pass\n" * 48,
    "demo/run.py": DOC + "import os\nenv = {**os.environ, 'A': 'b'}\nrun(os.environ, env=os.environ)\n",
}
LONG = DOC + "def f() -> None:\n" + '    """Run."""\n' + "    pass\n" * 49

PLANTED: list[tuple[Rule, str, str, str]] = [
    (long_files, "buffer/a.py", "x = 1\n" * 251, "251 lines"),
    (long_functions, "cli.py", LONG, "f has 51 lines"),
    (long_functions, "learner/a.py", LONG.replace("def f", "async def f"), "f has 51 lines"),
    (long_median, "demo/a.py", "def f() -> None:\n" + "    pass\n" * 10 + LONG.replace("f()", "g()") * 9, "median"),
    (empty_names, "buffer/redis_utils.py", DOC, "path says utils"),
    (empty_names, "serving/common/a.py", DOC, "path says common"),
    (empty_names, "demo/a.py", "class SwapManager: ...", "class SwapManager"),
    (empty_names, "demo/a.py", "class HTTPHandler: ...", "class HTTPHandler"),
    (environment_readers, "learner/loop.py", "import os\nx = os.environ.get('A')", "os.environ"),
    (environment_readers, "cli.py", "import os\nx = os.getenv('A')", "os.getenv"),
    (environment_readers, "demo/a.py", "from os import environ", "os.environ"),
    (environment_readers, "demo/a.py", "import os\nx = os.environ['A']", "os.environ"),
    (environment_readers, "serving/launch/server.py", "import os\nx = dict(os.environ)", "os.environ"),
    (without_return_types, "demo/a.py", "def _f(): ...", "_f -> ?"),
    (without_return_types, "demo/a.py", "class A:\n    def __init__(self): ...", "__init__ -> ?"),
    (without_docstrings, "demo/a.py", "x = 1", "module without docstring"),
    (without_docstrings, "demo/a.py", DOC + "def f() -> None: ...", "f without docstring"),
    (without_docstrings, "demo/a.py", DOC + "class A: ...", "A without docstring"),
    (without_docstrings, "demo/a.py", DOC + f"class A:\n    {DOC}    def f(self) -> None: ...", "f without docstring"),
]


def build_house(root: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(source, encoding="utf-8")
    return root


@pytest.mark.parametrize(("rule", "file", "source", "finding"), PLANTED)
def test_a_planted_violation_is_found_and_named(
    tmp_path: Path, rule: Rule, file: str, source: str, finding: str
) -> None:
    findings = rule(build_house(tmp_path, {**LAWFUL, file: source}))
    assert len(findings) == 1
    assert findings[0].startswith((file, "*"))
    assert finding in findings[0]


@pytest.mark.parametrize("rule", RULES)
def test_a_lawful_house_gives_no_findings(tmp_path: Path, rule: Rule) -> None:
    assert rule(build_house(tmp_path, LAWFUL)) == []


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_the_rule(rule: Rule) -> None:
    assert rule(HOUSE) == []
