"""Where settings come from: the environment wins over paceline.toml, and paceline.toml over the default."""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from .setting import PREFIX, Reader
from .table import BY_NAME

#: Read from the working directory unless PACELINE_CONFIG names another file.
DEFAULT_FILE: Final = Path("paceline.toml")

# Names that tests and CI may set, and those that Kubernetes sets for a service called paceline or paceline-something.
_RESERVED = re.compile(
    r"PACELINE_(CI_|TEST_)|PACELINE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)\Z"
)


class Origin(StrEnum):
    """Where a value was found."""

    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class _Given:
    text: str = field(repr=False)  # may be a secret
    where: str  # as an error names it
    origin: Origin


@dataclass(frozen=True, slots=True)
class Settings:
    """What was set, by name without PACELINE_. A value is checked when it is asked for."""

    given: Mapping[str, _Given]
    unknown: tuple[str, ...]  # one sentence for each name that is no setting

    def value(self, name: str) -> Any:
        """Return the value in force. ConfigError when what was given cannot be read or is out of range."""
        row = BY_NAME[name]
        given = self.given.get(name)
        return row.default if given is None else row.parse(given.text, given.where)

    def is_given(self, name: str) -> bool:
        """Whether the environment or the file sets it."""
        return name in self.given

    def origin(self, name: str) -> Origin:
        """Return where `value` comes from."""
        given = self.given.get(name)
        return Origin.DEFAULT if given is None else given.origin

    def require_known(self) -> None:
        """Raise ConfigError when a name is unknown or misspelt; nothing is changed."""
        if self.unknown:
            raise ConfigError("; ".join(self.unknown))


def is_reserved(variable: str) -> bool:
    """Whether a PACELINE_ variable belongs to tests, CI or Kubernetes and is ignored here."""
    return _RESERVED.match(variable) is not None


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the PACELINE_* variables of `environ`, and the file that PACELINE_CONFIG names or ./paceline.toml.

    Blanks around a value are ignored, and an empty value is no value. ConfigError when the file cannot be read.
    """
    variables, unknown = _variables(environ)
    lines, misplaced = _lines(Path(variables["CONFIG"].text) if "CONFIG" in variables else None)
    return Settings({**lines, **variables}, (*unknown, *misplaced))


def _variables(environ: Mapping[str, str]) -> tuple[dict[str, _Given], list[str]]:
    """What the environment sets, by name, and a sentence for each variable that is no setting."""
    ours = {name: text.strip() for name, text in environ.items() if name.startswith(PREFIX) and not is_reserved(name)}
    known = {}
    unknown = []
    for variable, text in ours.items():
        name = variable.removeprefix(PREFIX)
        if not text:
            continue
        if name in BY_NAME:
            known[name] = _Given(text, variable, Origin.ENVIRONMENT)
        else:
            unknown.append(f"{variable}: {_answer(name, lambda known: PREFIX + known)}")
    return known, unknown


def _lines(file: Path | None) -> tuple[dict[str, _Given], list[str]]:
    """What the file sets, by name, and a sentence for each key that is no setting, or not where it belongs."""
    known: dict[str, _Given] = {}
    misplaced = []
    for table, key, value in _flat(_content(file)):
        where = f"{f'{table}.' if table else ''}{key} in {file or DEFAULT_FILE}"
        name = key.upper()
        if fault := _fault(table, key, value, is_second=name in known):
            misplaced.append(f"{where}: {fault}")
        elif text := _text(value, where):
            known[name] = _Given(text, where, Origin.FILE)
    return known, misplaced


def _fault(table: str, key: str, value: Any, *, is_second: bool) -> str:
    """What is wrong with a key of the file; empty when nothing is."""
    row = BY_NAME.get(key.upper()) if key == key.lower() else None
    if row is None and isinstance(value, dict):
        return f"got an unknown table, expected one of {', '.join(f'[{reader}]' for reader in Reader)}"
    if row is None:
        return _answer(key.upper().removeprefix(PREFIX), str.lower)
    if row.name == "CONFIG":
        return "got the name of a file in a file, expected it in PACELINE_CONFIG"
    if table not in {"", row.reader}:
        return f"got a setting of another table, expected it in [{row.reader}] or above all tables"
    return "got a second value, expected one" if is_second else ""


def _content(file: Path | None) -> dict[str, Any]:
    try:
        return tomllib.loads((file or DEFAULT_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if file is None:
            return {}
        fault: Exception = error
    except (OSError, ValueError) as error:  # malformed TOML and malformed UTF-8 are ValueErrors
        fault = error
    where = f"PACELINE_CONFIG: got {str(file)!r}" if file else f"{DEFAULT_FILE}: got a file"
    raise ConfigError(f"{where} that cannot be read ({fault}), expected TOML") from None


def _flat(content: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Table ("" for none), key and value of every line."""
    for key, value in content.items():
        if key in set(Reader) and isinstance(value, dict):
            yield from ((key, inner, each) for inner, each in value.items())
        else:
            yield "", key, value


def _text(value: Any, where: str) -> str:
    """A value of the file as the environment would hold it."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    if not isinstance(value, str | int | float):
        kind = type(value).__name__
        raise ConfigError(f"{where}: got a {kind}, expected text, a number, true or false, or a list of texts")
    return str(value).strip()


def _answer(name: str, written: Callable[[str], str]) -> str:
    """What to say about `name`, which is no setting; `written` is how the reader writes the name of one.

    The value is not shown: it may be a secret.
    """
    nearest = [name] if name in BY_NAME else difflib.get_close_matches(name, BY_NAME, n=1)
    hint = f"the nearest is {written(nearest[0])}, " if nearest else ""
    return f"got an unknown name, expected a setting ({hint}`paceline settings` lists all)"
