"""What both codecs say of bytes that they refuse."""

from collections.abc import Mapping

from .plain_text import printable

_MAX_REASON_CHARS = 400  # an error may quote its input, whose length is anybody's choice


def decode_reason(text: str) -> str:
    """`text`, which may quote foreign input, short and printable."""
    return printable(text[:_MAX_REASON_CHARS])


def unknown_schema(what: str, got: int | None, readers: Mapping[int | None, object]) -> str:
    """Why an item of schema `got` is refused; `readers` has the schemas that are read."""
    expected = " or ".join(map(str, readers))
    return f"{what} schema: got {got}, expected {expected}; if a newer paceline wrote it, upgrade this one"
