"""Cells of tables: printable characters only, none of them read as markup, and unknown as a word."""

from rich.text import Text

from ..buffer.board.version import OTHER_LABELS
from ..buffer.plain_text import printable

UNKNOWN = "unknown"


def cell(text: str, style: str = "") -> Text:
    """`text` as it may be shown on any terminal; whoever writes to Redis chose it."""
    return Text(printable(text), style=style)


def length(value: float | None) -> str:
    """An accept length; a dash where there is none."""
    return "-" if value is None else f"{value:.2f}"


def interval(ends: tuple[float, float] | None) -> str:
    """Both ends of an interval; a dash where there is none."""
    return "-" if ends is None else f"{ends[0]:.2f} .. {ends[1]:.2f}"


def error(value: float | None, half_width: float | None, absent: str = "-") -> str:
    """A difference, and half of its 95 % interval where that is known; `absent` where there is none."""
    if value is None:
        return absent
    return f"{value:+.2f}" if half_width is None else f"{value:+.2f} ± {half_width:.2f}"


def label_word(label: str) -> str:
    """A label for people; requests without one, and those of further labels, have names."""
    return {"": "no label", OTHER_LABELS: "other labels"}.get(label, label)


def ago(seconds: float) -> str:
    """A time span for people, in its natural unit."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
