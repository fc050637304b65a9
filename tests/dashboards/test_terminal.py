"""Whatever ends a command is one line that says got, expected and what to do; --debug shows where it came from."""

import errno
import os
import subprocess
import sys

import pytest
import typer
from paceline.buffer.errors import BufferUnavailable, ConfigError, told
from paceline.dashboards import terminal
from paceline.dashboards.commands.access import answering
from paceline.dashboards.terminal import Debug, Door
from typer.testing import CliRunner

DENIED = PermissionError(errno.EACCES, "Permission denied", "/data/x")
SAID = "/data/x: got Permission denied, expected the right to use it; change its owner or mode, or name another place"


def program(error: Exception | None) -> typer.Typer:
    """Two commands that end with `error`; the second one keeps an answer away."""
    app = typer.Typer(cls=Door, pretty_exceptions_enable=False)

    @app.callback()
    def _main(debug: Debug = False) -> None: ...

    @app.command()
    def act(number: int = 1) -> None:
        if error is not None:
            raise error

    @app.command()
    def ask() -> None:
        with answering():
            act()

    return app


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DENIED, SAID),
        (OSError(errno.ENOSPC, "No space left on device"), "got No space left on device, expected room on that disk;"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/f/x"), "/f/x: got Not a directory, expected a folder;"),
        (OSError(errno.EADDRINUSE, "Address already in use"), "got Address already in use, expected a free port;"),
        (OSError(errno.EIO, "/d: got a fault, expected to write all of it"), "/d: got a fault, expected to write all"),
        (OSError("Unable to\n  load"), "got Unable to load, expected the system to do it; --debug shows"),
        (TypeError("'list' object"), "got TypeError: 'list' object, expected no such error here; --debug shows where"),
        (ConfigError("port: got 0, expected 1"), "port: got 0, expected 1"),
    ],
)
def test_every_error_is_one_line_with_got_expected_and_what_to_do(error, said):
    assert told(error).startswith(said)
    ended = CliRunner().invoke(program(error), ["act"])
    assert (ended.exit_code, ended.stdout, ended.stderr) == (1, "", f"paceline: {told(error)}\n")


@pytest.mark.parametrize(("error", "code"), [(DENIED, 2), (BufferUnavailable("gone"), 2), (KeyError("x"), 1)])
def test_what_keeps_an_answer_away_ends_with_2(error, code):
    assert CliRunner().invoke(program(error), ["ask"]).exit_code == code


@pytest.mark.parametrize("words", [("--debug", "act"), ("act", "--debug"), ("ask", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(words):
    ended = CliRunner().invoke(program(DENIED), words)
    assert "Traceback (most recent call last)" in ended.stderr
    assert f"paceline: {SAID}" in ended.stderr
    assert CliRunner().invoke(program(None), words).output == ""


def test_words_after_two_dashes_are_the_servers():
    seen = CliRunner().invoke(program(None), ["act", "--", "--debug"])
    assert (seen.exit_code, "unexpected extra argument" in seen.stderr) == (2, True)


def test_a_mistyped_option_is_answered_as_before():
    assert CliRunner().invoke(program(None), ["act", "--numbr", "2"]).exit_code == 2


def test_a_reader_that_has_gone_is_no_error_to_speak_of():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "paceline.cli", "readings"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_user_without_a_name_acts_by_number(monkeypatch):
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(terminal.getpass, "getuser", nobody)
    assert terminal.operator() == f"operator:uid-{os.getuid()}"
