"""Text and times out of Redis, made safe to show: whoever may write there chose every character."""

from datetime import UTC, datetime


def printable(text: str) -> str:
    """`text` without anything that would move a terminal's cursor, change its colours or end the line."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def utc_time(unix_s: float) -> str:
    """`unix_s` as date and time; as a number of seconds when no calendar has it. Never raises."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{unix_s:g} s"
