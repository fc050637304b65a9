"""What one setting is: its name, the values it takes, its default and the sentence that explains it."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

from ..errors import ConfigError

PREFIX = "PACELINE_"


class Reader(StrEnum):
    """Who reads a setting. The value is the table of paceline.toml that may hold it."""

    BUFFER = "buffer"  # servers, learners and commands
    SERVING = "serving"
    LEARNER = "learner"
    COMMAND_LINE = "command_line"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `kind` is a type that msgspec converts to; its `Meta` holds the range."""

    name: str  # without PACELINE_
    kind: Any
    default: Any  # None or "" when there is none; `unset` says what holds then
    sentence: str
    _: KW_ONLY
    unit: str = ""
    unset: str = ""
    mask: Callable[[str], str] | None = None  # how a secret is shown
    reader: Reader = Reader.BUFFER

    @property
    def variable(self) -> str:
        """Name in the environment."""
        return PREFIX + self.name

    @property
    def key(self) -> str:
        """Name in paceline.toml."""
        return self.name.lower()

    @property
    def expected(self) -> str:
        """The allowed values in words."""
        return _expected(inspect.type_info(self.kind))

    def parse(self, text: str, where: str) -> Any:
        """Return the value written as `text`, which is not empty. ConfigError names `where` it was found."""
        is_list = self.kind == tuple[str, ...]
        return self._convert(tuple(filter(None, map(str.strip, text.split(",")))) if is_list else text, where)

    def check(self, value: Any) -> None:
        """Raise ConfigError unless `value` is the default or one that `parse` could return."""
        if value is not None and value != self.default:
            self._convert(value, self.variable)

    def text(self, value: Any) -> str:
        """Return what `parse` reads as `value`; empty for None."""
        if isinstance(value, bool):
            return str(int(value))
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        return "" if value is None else str(value)

    def shown(self, value: Any) -> str:
        """`text`, with secrets masked and control characters escaped."""
        text = self.text(value)
        if self.mask is not None and text:
            text = self.mask(text)
        return text if text.isprintable() else repr(text)

    def _convert(self, value: Any, where: str) -> Any:
        try:
            made = msgspec.convert(value, self.kind, strict=False, dec_hook=_to_path)
        except msgspec.ValidationError:
            raise self._refusal(value, where) from None
        if isinstance(made, float) and not math.isfinite(made):
            raise self._refusal(value, where)
        return made

    def _refusal(self, value: Any, where: str) -> ConfigError:
        got = "a value that is not shown" if self.mask else repr(value)
        return ConfigError(f"{where}: got {got}, expected {self.expected}")


def _to_path(kind: type, value: Any) -> Any:
    """The one kind of setting that msgspec does not know; it makes a ValidationError of a TypeError."""
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise TypeError(f"got {type(value).__name__}, expected what a {kind.__name__} can be made of")


_WORDS: Final = {
    inspect.IntType: "an integer",
    inspect.FloatType: "a finite number",
    inspect.BoolType: "0 or 1",
    inspect.VarTupleType: "names, separated by commas",
    inspect.CustomType: "a path",
    inspect.StrType: "text",
}
_BOUNDS: Final = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}


def _expected(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata(extra_json_schema={"description": words}):
            return str(words)
        case inspect.LiteralType(values=names):
            return f"one of {', '.join(map(str, names))}"
        case inspect.EnumType(cls=names):
            return f"one of {', '.join(each.value for each in names)}"
    limits = ((words, getattr(kind, bound, None)) for bound, words in _BOUNDS.items())
    bounds = [f"{words} {limit:g}" for words, limit in limits if limit is not None]
    return " ".join([_WORDS[type(kind)], *bounds[:1], *(f"and {bound}" for bound in bounds[1:])])
