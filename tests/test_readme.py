"""README fits one screen, and docs/architecture.md names code, imports and keys that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from paceline.buffer.keys import ALL_KEYS

HOUSE = Path(__file__).resolve().parents[1]
README_LINES = 80
JOURNEYS = ("The journey of a trace", "The journey of a version")
LINK = r"\]\(([^)#\s]*)(?:#([^)]*))?\)"
#: What benchmarks write, which may be checkouts of other revisions; git ignores it.
RESULTS = HOUSE / "benchmarks" / "results"
OF_BENCHMARKS = [path for path in (HOUSE / "benchmarks").rglob("*.md") if RESULTS not in path.parents]
DOCUMENTS = [*HOUSE.glob("*.md"), *(HOUSE / "docs").glob("*.md"), *OF_BENCHMARKS]


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {heading}\s*$(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def journey(page: str, heading: str) -> list[str]:
    """`path:symbol` of every numbered item under the heading."""
    items = re.findall(r"^\d+\.\s+(.*)$", section(page, heading), re.MULTILINE)
    marks = [re.match(r"`([^`]+)`", item) for item in items]
    return [mark.group(1) if mark else item for mark, item in zip(marks, items, strict=True)]


def symbols(source: str) -> set[str]:
    """Functions and classes of a module by name, methods as Class.method."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def lost_stops(root: Path, stops: list[str]) -> list[str]:
    """Stops of a journey that name a file or a symbol which is not there."""
    lost = []
    for stop in stops:
        path, _, symbol = stop.partition(":")
        file = root / path
        if not file.is_file() or symbol not in symbols(file.read_text(encoding="utf-8")):
            lost.append(stop)
    return lost


def imported_names(file: Path) -> Iterator[tuple[str, ...]]:
    """Paths of what a module imports relatively, from the repository's root; the last part may be a symbol."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = file.relative_to(HOUSE).parent.parts
            module = (*base[: len(base) - node.level + 1], *(node.module or "").split("."))
            yield from ((*filter(None, module), alias.name) for alias in node.names)


def folder_imports(room: str) -> dict[str, set[str]]:
    """Folder -> the other folders of the same package that its modules import."""
    folders = {path.name for path in (HOUSE / room).iterdir() if (path / "__init__.py").is_file()}
    found: dict[str, set[str]] = {name: set() for name in folders}
    for name in folders:
        for file in (path for path in (HOUSE / room / name).rglob("*.py") if "stubs" not in path.parts):
            found[name] |= {path[1] for path in imported_names(file) if path[0] == room and len(path) > 1} & folders
        found[name].discard(name)
    return found


def table_rows(page: str, first_heading: str) -> dict[str, set[str]]:
    """First cell -> names in backticks in the last cell, of the table whose first heading it is."""
    table = re.search(rf"^\| {first_heading} \|.*?(?=^[^|]|\Z)", page, re.MULTILINE | re.DOTALL)
    rows = [
        line.strip("|").split("|") for line in (table.group(0) if table else "").splitlines()[2:] if line[:1] == "|"
    ]
    return {row[0].strip(" `"): set(re.findall(r"`([^`]+)`", row[-1])) for row in rows}


def anchors(document: Path) -> set[str]:
    """What the headings of a page are called in links to them, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def architecture() -> str:
    return (HOUSE / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_readme_fits_one_screen() -> None:
    assert len((HOUSE / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("heading", JOURNEYS)
def test_every_stop_of_a_journey_exists(heading: str) -> None:
    stops = journey(architecture(), heading)
    assert len(stops) >= 12
    assert lost_stops(HOUSE, stops) == []


@pytest.mark.parametrize("room", ["serving", "learner"])
def test_the_import_table_is_that_of_the_code(room: str) -> None:
    assert table_rows(architecture(), f"folder of {room}") == folder_imports(room)


def test_the_table_of_keys_is_that_of_the_code() -> None:
    keys = {name.partition("<")[0]: name for name in table_rows(architecture(), "key")}
    assert keys.keys() == {key.suffix for key in ALL_KEYS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(HOUSE).as_posix())
def test_every_linked_file_and_heading_is_there(document: Path) -> None:
    lost = []
    for link, anchor in re.findall(LINK, document.read_text(encoding="utf-8")):
        target = (document.parent / link).resolve() if link else document
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            lost.append(f"{link}#{anchor}")
    assert lost == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(HOUSE).as_posix())
def test_every_module_that_a_document_names_is_there(document: Path) -> None:
    roots = "buffer|policies|serving|learner|dashboards|rig|demo|benchmarks|tests"
    named = re.findall(rf"`((?:{roots})/[\w/.-]+\.(?:py|lua|sh|md))", document.read_text(encoding="utf-8"))
    assert [name for name in named if not (HOUSE / name).is_file()] == []


@pytest.mark.parametrize(
    ("item", "lost"),
    [
        ("`a.py:f` takes it", []),
        ("`a.py:Box.put` keeps it", []),
        ("`a.py:g` is gone", ["a.py:g"]),
        ("`a.py:Box.get` is gone", ["a.py:Box.get"]),
        ("`b.py:f` is gone", ["b.py:f"]),
        ("`a.py` names no function", ["a.py"]),
        ("no path at all", ["no path at all"]),
    ],
)
def test_a_stop_that_names_nothing_is_found(tmp_path: Path, item: str, lost: list[str]) -> None:
    (tmp_path / "a.py").write_text("def f(): ...\nclass Box:\n    def put(self): ...\n", encoding="utf-8")
    page = f"# page\n\n1. `other.py:x`\n\n## {JOURNEYS[0]}\n\nIn order:\n\n1. {item}\n\n## Next\n\n1. `other.py:y`\n"
    assert lost_stops(tmp_path, journey(page, JOURNEYS[0])) == lost
