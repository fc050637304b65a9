"""Versions for the boards of tests, which name only what they are about."""

from dataclasses import replace
from pathlib import Path

from paceline.buffer.board.version import DraftVersion
from paceline.buffer.board.weights_file import WEIGHTS_FILE, sha256_of

_PLAIN = DraftVersion(
    number=0,
    parent=None,
    target="target",
    target_version="1",
    drafter="eagle3",
    weights_uri="file:///d",
    sha256="0" * 64,
    objective="soft",
    trained_on=("", ""),
)


def made_version(number: int, parent: int | None = None, **changes: object) -> DraftVersion:
    """A version whose weights nobody reads, unless `changes` name some."""
    return replace(_PLAIN, number=number, parent=parent, **changes)


def version_in(folder: Path, number: int, **changes: object) -> DraftVersion:
    """The version of the weights in `folder`."""
    return made_version(number, weights_uri=folder.as_uri(), sha256=sha256_of(folder / WEIGHTS_FILE), **changes)
