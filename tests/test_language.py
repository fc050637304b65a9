"""Plain English: `behind` is said of places and of what is late, and never means `after`."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: What benchmarks write, which may be checkouts of other revisions; git ignores it.
RESULTS = ROOT / "benchmarks" / "results"
KINDS = {".py", ".md", ".toml", ".yml", ".lua", ".sh"}
#: Files with an honest use of the word -> the phrases it is used in.
HONEST = {
    "CONTRIBUTING.md": ["*behind* is said of places"],
    "README.md": ["behind the one in front"],
    "docs/guarantees.md": ["behind_tls"],
    "docs/measured.md": ["falls three learning rounds behind"],
    "docs/troubleshooting.md": ["behind SGLang's router"],
    "policies/canary.py": ["behind one router"],
    "serving/sglang_speculation.py": ["behind SGLang's router"],
    "tests/buffer/conftest.py": ["behind TLS"],
    "tests/buffer/test_redis_tls.py": ["behind TLS", "behind_tls"],
}
#: Not searched: this file.
LEFT_OUT = {"tests/test_language.py"}
#: Files and folders that are searched, from the root.
SEARCHED = (
    "Makefile", "pyproject.toml", "docker-compose.yml", "mkdocs.yml", "__init__.py", "cli.py",
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", ".ci", ".github", "docs",
    "benchmarks", "buffer", "dashboards", "demo", "learner", "policies", "rig", "serving", "tests",
)  # fmt: skip


def searched_files() -> Iterator[Path]:
    for name in SEARCHED:
        path = ROOT / name
        found = [path] if path.is_file() else (file for file in path.rglob("*") if file.suffix in {*KINDS, ""})
        kept = (file for file in found if file.is_file() and RESULTS not in file.parents)
        yield from (file for file in kept if file.relative_to(ROOT).as_posix() not in LEFT_OUT)


def dishonest_uses(text: str, honest: list[str]) -> list[str]:
    """Lines that use the word, in prose or in a name, outside the phrases of `honest`."""
    for phrase in honest:
        text = text.replace(phrase, "")
    return [line.strip() for line in text.splitlines() if re.search("behind", line, re.IGNORECASE)]


def test_behind_never_means_after() -> None:
    found = {}
    for path in searched_files():
        name = path.relative_to(ROOT).as_posix()
        found[name] = dishonest_uses(path.read_text(encoding="utf-8"), HONEST.get(name, []))
    assert found.keys() >= {"Makefile", "learner/round/loop.py", "tests/e2e/conftest.py", "docs/index.md"}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("line", ["the token behind it", "def test_what_lies_behind_a_round():", "Behind the verdict"])
def test_the_word_is_found_in_prose_and_in_names(line: str) -> None:
    assert dishonest_uses(f"first\n{line}\n", ["behind a router"]) == [line]
    assert dishonest_uses(f"{line}\n", [line]) == []
