"""What commands have to do with the terminal: how they end when something is wrong, who acts, and a token typed in."""

import getpass
import sys
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


def new_token() -> str:
    """The token typed in or the first line of stdin: neither a process list nor a shell's history shows it."""
    if sys.stdin.isatty():
        return str(typer.prompt("new operator token", hide_input=True, confirmation_prompt=True)).strip()
    return sys.stdin.readline().strip()


def operator() -> str:
    """Who acts, for the board."""
    return f"operator:{getpass.getuser()}"
