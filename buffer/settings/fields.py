"""How a config object holds settings: fields that take name, default and range from the table."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, TypeVar

from ..errors import ConfigError
from .setting import Setting
from .sources import Settings
from .table import BY_NAME

_ROW = "setting"
_T = TypeVar("_T")


def setting(name: str, **default: Any) -> Any:
    """Return a dataclass field that holds the setting `name` and has its default; secrets stay out of the repr.

    `default` or `default_factory` give another default, where one process has its own.
    """
    row = BY_NAME[name]
    own = default or {"default": row.default}
    return field(**own, repr=row.mask is None, metadata={_ROW: row})


def required_setting(name: str) -> Any:
    """Return a dataclass field without a default that holds the setting `name`."""
    return field(metadata={_ROW: BY_NAME[name]})


def configured(kind: type[_T], settings: Settings, **others: Any) -> _T:
    """Make a `kind` from what was set; `others` are its fields that hold no setting.

    ConfigError when a value is malformed or out of range, and when one without a default is missing.
    """
    rows = _rows(kind)
    missing = [row.variable for each, row in rows.items() if _is_required(each) and not settings.is_given(row.name)]
    if missing:
        raise ConfigError(f"{', '.join(missing)}: got nothing, expected a value")
    given = {each.name: settings.value(row.name) for each, row in rows.items() if settings.is_given(row.name)}
    return kind(**given, **others)


def check_fields(config: Any) -> None:
    """Raise ConfigError unless every setting that `config` holds is in its range; for __post_init__."""
    for each, row in _rows(type(config)).items():
        row.check(getattr(config, each.name))


def as_environment(config: Any) -> Mapping[str, str]:
    """Return variables from which `configured` makes an object equal to `config`."""
    rows = _rows(type(config))
    return {row.variable: row.text(getattr(config, each.name)) for each, row in rows.items()}


def _rows(kind: Any) -> dict[Field[Any], Setting]:
    return {each: each.metadata[_ROW] for each in fields(kind) if _ROW in each.metadata}


def _is_required(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING
