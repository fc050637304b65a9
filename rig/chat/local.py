"""Chats over what every machine with Python has: its library, its documentation, its packages."""

import ast
import re
import sys
import sysconfig
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from http import HTTPStatus
from importlib import metadata
from pathlib import Path

from ..models.corpus import load_corpus
from ..prompts import Chat
from .messages import asked

_PROGRAMS = frozenset(("idlelib", "lib2to3", "turtledemo"))  # of the library, and nobody calls them
_MAX_SIGNATURE_CHARS = 120
_PARAGRAPH_CHARS = range(300, 901)
_MIN_LETTERS_SHARE = 0.93  # below it are tables and code
_LETTERS = range(0xC0, 0x530, 5)  # Latin, Greek and Cyrillic ones; each fifth, so that they do not outweigh the rest


@cache
def explain() -> tuple[Chat, ...]:
    """What does this function do: every public one of the library with a docstring, by its real signature."""
    ask = "Explain what the Python function `{}` does and show a short example."
    return tuple(asked(ask.format(signature)) for signature in _signatures())


@cache
def summary() -> tuple[Chat, ...]:
    """Paragraphs of docstrings, the language reference and licences, to be told in plain words."""
    prose = load_corpus(("prose",))["prose"]
    pieces = [piece for text in (*prose.training, *prose.held_out) for piece in re.split(r"\n\s*\n", text)]
    paragraphs = filter(_is_prose, (" ".join(piece.split()) for piece in pieces))
    return tuple(asked(f"Summarize the following text in plain words:\n\n{text}") for text in paragraphs)


def json_records() -> list[Chat]:
    """Records as lines of "Name: value", to be rewritten: installed packages, HTTP statuses, letters."""
    return [_as_json(record) for record in (*_packages(), *_statuses(), *_letters())]


def _signatures() -> list[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, str] = {}  # a module may define a function twice, for two systems
    for path in sorted((*library.glob("*.py"), *library.glob("*/*.py"))):
        module = [part for part in path.relative_to(library).with_suffix("").parts if part != "__init__"]
        if module and module[0] in sys.stdlib_module_names - _PROGRAMS and not any(p.startswith("_") for p in module):
            for node in ast.parse(path.read_bytes()).body:
                if isinstance(node, ast.FunctionDef) and node.name[0] != "_" and ast.get_docstring(node):
                    name = ".".join([*module, node.name])
                    found.setdefault(name, f"{name}({ast.unparse(node.args)})")
    return [signature for signature in found.values() if len(signature) <= _MAX_SIGNATURE_CHARS]


def _is_prose(text: str) -> bool:
    letters = sum(char.isalpha() or char == " " for char in text)
    is_long_enough = len(text) in _PARAGRAPH_CHARS and text.count(". ") >= 2
    return is_long_enough and text[0].isupper() and text[-1] == "." and letters >= _MIN_LETTERS_SHARE * len(text)


def _as_json(record: Mapping[str, str]) -> Chat:
    keys = ", ".join(re.sub(r"\W", "_", name.lower()) for name in record)
    lines = "\n".join(f"{name}: {value}" for name, value in record.items() if value)
    return asked(f"Rewrite the following as JSON with the keys {keys}:\n\n{lines}")


def _packages() -> Iterator[Mapping[str, str]]:
    """Headers of each package's metadata, in the order of names; a field that comes often is one line."""
    by_name = {package.name: package.metadata for package in metadata.distributions()}
    for _, headers in sorted(by_name.items()):
        fields = ("Name", "Version", "Summary", "Requires-Python", "Requires-Dist")
        yield {field: "; ".join((headers.get_all(field) or [])[:5]) for field in fields}


def _statuses() -> Iterator[Mapping[str, str]]:
    for status in HTTPStatus:
        yield {"Status code": str(status.value), "Reason": status.phrase, "Description": status.description}


def _letters() -> Iterator[Mapping[str, str]]:
    for letter in filter(str.isalpha, map(chr, _LETTERS)):
        yield {
            "Character": letter, "Code point": f"U+{ord(letter):04X}", "Name": unicodedata.name(letter),
            "Category": unicodedata.category(letter), "Upper case": letter.upper(), "Lower case": letter.lower(),
        }  # fmt: skip
