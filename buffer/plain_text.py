"""Text made safe to show: out of Redis, where whoever may write chose every character, and URLs with passwords."""

from datetime import UTC, datetime
from urllib.parse import urlsplit


def printable(text: str) -> str:
    """`text` without anything that would move a terminal's cursor, change its colours or end the line."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def utc_time(unix_s: float) -> str:
    """`unix_s` as date and time; as a number of seconds when no calendar has it. Never raises."""
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{unix_s:g} s"


def masked(url: str) -> str:
    """`url` with its password, and whatever follows a question mark, replaced by ``***``.

    Of a url that cannot be told apart for certain nothing but the scheme is left: an unquoted ``/`` in a password
    would else move its rest to the host.
    """
    scheme, separator, _ = url.partition("://")
    hidden = f"{scheme}://***" if separator and scheme.isalpha() else "a malformed url"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises when it is no number, as for a lone password
    except ValueError:
        return hidden
    if not separator or "@" in parts.path + parts.query + parts.fragment:
        return hidden
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    shown = f"{name}:***@" if colon else "***@" * bool(at)
    return f"{scheme}://{shown}{host}{parts.path}{'?***' if parts.query else ''}"
