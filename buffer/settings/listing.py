"""All settings in words: those in force for the terminal and as JSON, and the table for docs/settings.md."""

from typing import Any, Final

from .setting import Reader, Setting
from .sources import Settings
from .table import SETTINGS

_TITLES: Final = {
    Reader.BUFFER: "Servers, learners and commands",
    Reader.SERVING: "Servers",
    Reader.LEARNER: "Learners",
    Reader.COMMAND_LINE: "Commands",
}

_INTRODUCTION: Final = """\
# Settings

<!-- Written by `paceline settings --markdown > docs/settings.md`; edit the tables of buffer/settings instead. -->

A setting is an environment variable, or a line of a TOML file: `paceline.toml` in the working directory, or the file
that `PACELINE_CONFIG` names. There it is written in lower case without `PACELINE_`, at the top or in one of the tables
`[buffer]`, `[serving]`, `[learner]` and `[command_line]`, which say who reads it:

```toml
redis_url = "redis://127.0.0.1:6379/0"

[learner]
min_new_traces = 60
```

The environment wins over the file. Blanks around a value are ignored, and an empty value means "not set". A name that
is no setting stops the learner and every command; the plugin in SGLang logs it as an error and ignores it. Variables
that begin with `PACELINE_CI_` or `PACELINE_TEST_` are ignored, and so are those that Kubernetes sets for services.
`paceline settings` prints what is in force and where it comes from.
"""


def settings_lines(settings: Settings) -> list[str]:
    """Return one line for each setting in force, under a title for each group of readers. Secrets are masked."""
    width = max(len(row.variable) for row in SETTINGS)
    lines: list[str] = []
    for reader, title in _TITLES.items():
        lines += ["", title] if lines else [title]
        for row in _rows(reader):
            value = _in_force(row, settings)
            lines.append(f"  {row.variable:{width}}  {settings.origin(row.name):11}  {value}")
    return lines


def settings_json(settings: Settings) -> list[dict[str, Any]]:
    """Return every setting in force as JSON values. Secrets are masked; a value that is not set is null."""
    return [
        {
            "name": row.variable,
            "read_by": str(row.reader),
            "value": _json_value(row, settings.value(row.name)),
            "unit": row.unit or None,
            "from": str(settings.origin(row.name)),
        }
        for row in SETTINGS
    ]


def settings_markdown() -> str:
    """Return docs/settings.md."""
    parts = [_INTRODUCTION]
    for reader, title in _TITLES.items():
        parts.append(f"\n## {title}\n\n| variable | default | unit | allowed | what it does |\n|---|---|---|---|---|\n")
        parts += [_markdown_row(row) for row in _rows(reader)]
    return "".join(parts)


def _rows(reader: Reader) -> list[Setting]:
    return [row for row in SETTINGS if row.reader is reader]


def _in_force(row: Setting, settings: Settings) -> str:
    value = row.shown(settings.value(row.name))
    return f"{value} {row.unit}".rstrip() if value else f"({row.unset})"


def _json_value(row: Setting, value: Any) -> Any:
    is_plain = isinstance(value, bool | int | float | tuple) and row.mask is None
    return value if is_plain else row.shown(value) or None


def _markdown_row(row: Setting) -> str:
    cells = (f"`{row.variable}`", _markdown_default(row), row.unit, row.expected, row.sentence)
    return f"| {' | '.join(cells)} |\n"


def _markdown_default(row: Setting) -> str:
    text = row.text(row.default)
    if row.unit == "bytes" and text:
        return f"`{text}` ({row.default >> 20} MiB)"
    return f"`{text}`" if text else row.unset
