"""Real text that every machine with CPython has, by domain, split by file into training and held-out text.

    py     library code with its docstrings cut out
    prose  docstrings, the language reference inside pydoc, licences and release notes
    c      headers of CPython, where they are installed
    html   documentation pages, where enough of them are installed

A source file is on one side of the split for all domains: no docstring is held-out prose while the code around
it is training text. Identical texts are kept once.
"""

import ast
import hashlib
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from ...buffer.errors import ConfigError

#: Domains that need nothing but the interpreter; the others are used where they are found.
CERTAIN_DOMAINS = ("py", "prose")

# Fixtures and tables are data, not text; site-packages differ from machine to machine.
_SKIPPED_FOLDERS = frozenset(
    ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data", "data")
)
_HELD_OUT_SHARE = 0.15
_MIN_CHARS = 200_000  # a smaller domain gives no room for hundreds of distinct held-out prompts
_MIN_DOCSTRING_CHARS = 80  # one-line docstrings are captions


@dataclass(frozen=True, slots=True)
class Document:
    """One text; `source` decides its side of the split and is stable between machines with the same files."""

    source: str
    text: str

    @property
    def is_held_out(self) -> bool:
        """Return whether no model may be trained on it: a fixed share of all sources, by hash."""
        digest = hashlib.sha256(self.source.encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < _HELD_OUT_SHARE


@dataclass(frozen=True, slots=True)
class DomainText:
    """Texts of one domain; training and held-out texts share no source and no text."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]

    @property
    def chars(self) -> int:
        """Characters on both sides."""
        return sum(map(len, self.training)) + sum(map(len, self.held_out))


@dataclass(frozen=True, slots=True)
class Corpus:
    """All domains found; `fingerprint` changes with any character of any of them."""

    domains: Mapping[str, DomainText]
    fingerprint: str

    def __getitem__(self, domain: str) -> DomainText:
        """The texts of `domain`. Raises ConfigError when this machine does not have it."""
        if domain not in self.domains:
            raise ConfigError(f"text domain: got {domain!r}, expected one of {sorted(self.domains)} on this machine")
        return self.domains[domain]


def load_corpus(domains: Iterable[str] = CERTAIN_DOMAINS) -> Corpus:
    """Read the named domains from this machine; takes seconds the first time. The same files give the same corpus.

    Raises ConfigError when a domain is unknown or this machine holds too little of it.
    """
    found = {}
    for domain in domains:
        if domain not in _READERS:
            raise ConfigError(f"text domain: got {domain!r}, expected one of {sorted(_READERS)}")
        text = split(_READERS[domain]())
        if text.chars < _MIN_CHARS or not text.held_out:
            raise ConfigError(f"text domain {domain!r}: got {text.chars} characters, expected at least {_MIN_CHARS}")
        found[domain] = text
    return Corpus(MappingProxyType(found), _fingerprint(found))


def split(documents: Iterable[Document]) -> DomainText:
    """Order by source, drop repeated texts, and part by source."""
    seen: set[str] = set()
    sides: tuple[list[str], list[str]] = ([], [])
    for document in sorted(documents, key=lambda item: (item.source, item.text)):
        if document.text.strip() and document.text not in seen:
            seen.add(document.text)
            sides[document.is_held_out].append(document.text)
    return DomainText(tuple(sides[False]), tuple(sides[True]))


def _py() -> Iterator[Document]:
    for source, code, _ in _modules():
        yield Document(source, code)


def _prose() -> Iterator[Document]:
    seen: set[str] = set()  # docstrings are copied between modules: the first module keeps each
    for source, _, written in _modules():
        pieces = [text for text in written if len(text) >= _MIN_DOCSTRING_CHARS and text not in seen]
        seen.update(pieces)
        yield Document(source, "\n\n".join(pieces))
    topics: Mapping[str, str] = getattr(import_module("pydoc_data.topics"), "topics", {})
    for name, text in topics.items():
        yield Document(f"topics/{name}", text)
    for suffix in (".txt", ".rst", ".md"):
        yield from _texts(_library(), suffix)


def _c() -> Iterator[Document]:
    yield from _texts(Path(sysconfig.get_paths()["include"]), ".h")


def _html() -> Iterator[Document]:
    for folder in (_library(), Path("/usr/share/doc"), Path("/usr/local/share/doc")):
        yield from _texts(folder, ".html")


_READERS = {"py": _py, "prose": _prose, "c": _c, "html": _html}


def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _texts(folder: Path, suffix: str) -> Iterator[Document]:
    """Text files below `folder`, skipping what is no text for this purpose; nothing when there is no folder."""
    for path in sorted(folder.rglob(f"*{suffix}")):
        source = path.relative_to(folder)
        if path.is_file() and not _SKIPPED_FOLDERS.intersection(source.parts):
            yield Document(source.as_posix(), path.read_text(encoding="utf-8", errors="replace"))


@cache
def _modules() -> tuple[tuple[str, str, list[str]], ...]:
    """Source, code without docstrings and docstrings of every library module; parsed once per process."""
    return tuple(_parsed(_texts(_library(), ".py")))


def _parsed(documents: Iterable[Document]) -> Iterator[tuple[str, str, list[str]]]:
    for document in documents:
        try:
            tree = ast.parse(document.text)
        except (SyntaxError, ValueError):  # library files that are wrong on purpose
            continue
        yield document.source, without_docstrings(tree, document.text), docstrings(tree)


def docstrings(tree: ast.Module) -> list[str]:
    """Docstrings of a module, outermost first, without their indentation."""
    homes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, homes))
    return [text for text in found if text]


def without_docstrings(tree: ast.Module, text: str) -> str:
    """`text` without the lines that hold docstrings, other statements on those lines included."""
    cut: set[int] = set()
    homes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, homes) and ast.get_docstring(node, clean=False) is not None:
            cut.update(range(node.body[0].lineno, (node.body[0].end_lineno or node.body[0].lineno) + 1))
    lines = text.splitlines(keepends=True)
    return "".join(line for number, line in enumerate(lines, start=1) if number not in cut)


def _fingerprint(domains: Mapping[str, DomainText]) -> str:
    digest = hashlib.sha256()
    for name, text in sorted(domains.items()):
        for side in (text.training, text.held_out):
            digest.update(f"{name} {[len(piece) for piece in side]}".encode())
            digest.update("".join(side).encode("utf-8", errors="replace"))
    return digest.hexdigest()
