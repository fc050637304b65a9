"""What commands have to do with the terminal: how they end when something is wrong, who acts, and a token typed in."""

import getpass
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from ..buffer.errors import ConfigError, told

Debug = Annotated[bool, typer.Option("--debug", help="Show where an error came from.")]
_DEBUG: Final = "--debug"
#: How a shell names the end of a program whose reader has gone: 128 and the number of SIGPIPE.
_BROKEN_PIPE: Final = 141
#: Click's ClickException, which newer releases of typer have within themselves.
_USAGE: Final[Any] = typer.BadParameter.__mro__[2]


class Door(TyperGroup):
    """The commands of a program: whatever one raises becomes one line on stderr, with its traceback by --debug."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Takes --debug anywhere before `--`, since nobody knows in advance that it is wanted."""
        end = args.index("--") if "--" in args else len(args)
        own = [word for word in args[:end] if word != _DEBUG]
        return super().parse_args(ctx, [*[_DEBUG] * (len(own) < end), *own, *args[end:]])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer.Exit for whatever it raises."""
        try:
            with one_line_errors():
                return super().invoke(ctx)
        except typer.Exit as ended:
            if ctx.params.get("debug") and ended.__context__ is not None:
                traceback.print_exception(ended.__context__)
            raise


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns any error into one line on stderr and exit code 1, but says nothing where the reader of stdout has gone."""
    try:
        yield
    except (typer.Exit, typer.Abort, _USAGE):
        raise
    except BrokenPipeError:
        # Else the interpreter flushes at its end, and says that it cannot.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_BROKEN_PIPE) from None
    except Exception as error:  # noqa: BLE001 - whatever it is, a person reads it
        fail(told(error))


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
    """Who acts, for the board; by number where the system knows no name, as in many containers."""
    try:
        return f"operator:{getpass.getuser()}"
    except (KeyError, OSError):
        return f"operator:uid-{os.getuid()}"
