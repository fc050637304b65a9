"""How a command of `paceline` ends when something is wrong: one line on stderr and an exit code."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from ..buffer.errors import ConfigError, PacelineError


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns an error of paceline into one line on stderr and exit code 1."""
    try:
        yield
    except PacelineError as error:
        fail(str(error))


@contextmanager
def needing_extra(name: str) -> Iterator[None]:
    """Goes around imports: turns a module that is not installed into a ConfigError that says what to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        needs = f"paceline[{name}], by pip install '/path/to/paceline[{name}]'"
        raise ConfigError(f"got no module {missing.name}, expected {needs}") from missing


def fail(message: str, code: int = 1) -> NoReturn:
    """Say it on stderr and end the command with `code`."""
    typer.secho(f"paceline: {message}", fg="red", err=True)
    raise typer.Exit(code)
