"""Which tests show which guarantee: `python tests/guarantees.py` writes docs/guarantees.md.

A document states a guarantee and links its slug, ``[redis-hangs](guarantees.md#redis-hangs)``; a test that shows it
carries ``@pytest.mark.guarantee("redis-hangs")``.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]
PAGE = "docs/guarantees.md"
MARKER = "pytest.mark.guarantee"
HEAD = f"""# Guarantees and the tests that show them

Every guarantee has a test that shows it: by slug, the pages that state it, and its tests. Written by
`python tests/guarantees.py` from the documents and the `@{MARKER}(...)` marks on tests; do not edit.
"""


def documented(root: Path) -> dict[str, list[str]]:
    """Slug -> names of the documents that link it."""
    found = defaultdict(list)
    for path in sorted((root / "docs").glob("*.md")):
        if path.name != Path(PAGE).name:
            slugs = re.findall(r"\[([a-z0-9-]+)\]\(guarantees\.md#\1\)", path.read_text(encoding="utf-8"))
            for slug in sorted(set(slugs)):
                found[slug].append(path.name)
    return dict(found)


def marked(root: Path) -> dict[str, list[str]]:
    """Slug -> ids of the tests marked with it."""
    found = defaultdict(list)
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if MARKER in text else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for slug in _slugs(node):
                    found[slug].append(f"{path.relative_to(root).as_posix()}::{node.name}")
    return dict(found)


def _slugs(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == MARKER:
            yield from (ast.literal_eval(argument) for argument in decorator.args)


def page(root: Path) -> str:
    """What docs/guarantees.md must hold."""
    documents = documented(root)
    tests = marked(root)
    lines = [HEAD]
    for slug in sorted(documents.keys() | tests.keys()):
        links = ", ".join(f"[{name}]({name})" for name in documents.get(slug, []))
        lines += [f"## {slug}\n", f"{links}\n", *(f"- `{test}`" for test in tests.get(slug, [])), ""]
    return "\n".join(lines)


def findings(root: Path) -> list[str]:
    """Guarantees without a test, marks without a document, and a page that is out of date."""
    documents = documented(root)
    tests = marked(root)
    found = [f"{slug}: stated in {documents[slug]}, marked on no test" for slug in documents.keys() - tests.keys()]
    found += [f"{slug}: marked on {tests[slug]}, stated in no document" for slug in tests.keys() - documents.keys()]
    file = root / PAGE
    if not file.is_file() or file.read_text(encoding="utf-8") != page(root):
        found.append(f"{PAGE}: is out of date; run `python tests/guarantees.py`")
    return sorted(found)


if __name__ == "__main__":
    (HOUSE / PAGE).write_text(page(HOUSE), encoding="utf-8")
