"""What every command shares: the options that say whose board, and the way to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ...buffer.errors import BoardConflict, BufferUnavailable, DecodeError, told
from ...buffer.finding import CANNOT_TELL
from ...buffer.plain_text import printable
from ..terminal import fail, one_line_errors

if TYPE_CHECKING:
    from ...buffer.board.board_access import BoardAccess
    from ...buffer.settings.sources import Settings

RedisUrl = Annotated[str | None, typer.Option("--redis-url", help="Redis; if not given, PACELINE_REDIS_URL.")]
Speculator = Annotated[
    str | None, typer.Option(help="Whose board; if not given, PACELINE_SPECULATOR, else the only one in Redis.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def read_settings() -> "Settings":
    """What is set here. ConfigError when a name is no setting."""
    from ...buffer.settings.sources import read_settings as read

    found = read(os.environ)
    found.require_known()
    return found


def open_access(redis_url: str | None, speculator: str | None) -> "BoardAccess":
    """The board that the options and the settings name. Raises as `open_board` does, and ConfigError."""
    from ...buffer.board.board_access import open_board

    return open_board(read_settings(), redis_url, speculator)


def open_known(redis_url: str | None, speculator: str | None) -> "BoardAccess":
    """As open_access, of a speculator that Redis knows; exits with CANNOT_TELL where it does not, but knows others.

    Whoever mistypes a name would otherwise read that nothing is known of it.
    """
    from ...buffer.board.board_access import list_speculators

    access = open_access(redis_url, speculator)
    if not access.board.read().rows and not access.board.members():
        names = list_speculators(read_settings(), redis_url)
        if names and access.speculator not in names:
            known = ", ".join(map(printable, names))
            fail(
                f"PACELINE_SPECULATOR: got {printable(access.speculator)}, of which Redis has no board and no members, "
                f"expected one of {known} there or in --speculator",
                CANNOT_TELL,
            )
    return access


@contextmanager
def answering() -> Iterator[None]:
    """For a command that answers: an error is one line on stderr, with exit code 2 where it keeps the answer away."""
    with one_line_errors():
        try:
            yield
        except BrokenPipeError:
            raise
        except (BufferUnavailable, DecodeError, BoardConflict, OSError) as error:
            fail(told(error), CANNOT_TELL)
