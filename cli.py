"""The command line: the one place, with demo/, where the rooms are wired together."""

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .buffer.errors import PacelineError

if TYPE_CHECKING:
    from .buffer.base import VersionBoard
    from .buffer.redis_operator import OperatorAuth

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
token = typer.Typer(
    no_args_is_help=True, help="The operator's token, asked for by promote and rollback once it is set."
)
app.add_typer(token, name="token")

RedisUrl = Annotated[str, typer.Option("--redis-url", envvar="PACELINE_REDIS_URL", help="Where the buffer lives.")]
Speculator = Annotated[str, typer.Option(envvar="PACELINE_SPECULATOR", help="Which stream and board.")]
Unchecked = Annotated[
    bool, typer.Option("--unchecked", help="Do not read its weights: their disk is not mounted here.")
]
Why = Annotated[str, typer.Option(help="Reason, written to the board.")]

LOCAL_REDIS = "redis://127.0.0.1:6379/0"


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(context: typer.Context) -> None:
    """Start SGLang with the plugin: `paceline serve -- <any sglang flags>`; with `--device cpu` on the CPU host."""
    import os

    from .serving.launch.server import launch_plan, run_server

    with _errors():
        raise typer.Exit(run_server(launch_plan(context.args, os.environ)))


@app.command()
def learn(
    beat: Annotated[bool, typer.Option(help="Also schedule the rounds (one beat per speculator).")] = True,
) -> None:
    """Run a Celery learner with the settings in PACELINE_*."""
    with _errors():
        from .learner.app import run_worker
        from .learner.config import from_env

        run_worker(from_env(), beat=beat)


@app.command()
def versions(redis_url: RedisUrl = LOCAL_REDIS, speculator: Speculator = "default") -> None:
    """List draft versions with their state, scores and the reason of the last change."""
    from rich.console import Console

    from .dashboards.tables import version_lines, versions_table

    with _errors():
        Console().print(versions_table(version_lines(_board(redis_url, speculator).read())))


@app.command()
def alarms(redis_url: RedisUrl = LOCAL_REDIS, speculator: Speculator = "default") -> None:
    """List what replicas and learners say is wrong: what stands, and what was raised lately."""
    from rich.console import Console

    from .dashboards.tables import alarm_lines, alarms_table

    with _errors():
        Console().print(alarms_table(alarm_lines(_board(redis_url, speculator).heartbeats())))


@app.command()
def promote(
    number: int,
    why: Why = "promoted by hand",
    unchecked: Unchecked = False,
    redis_url: RedisUrl = LOCAL_REDIS,
    speculator: Speculator = "default",
) -> None:
    """Make version NUMBER live once its weights are what was published; servers swap it in between two iterations."""
    from .buffer.version import VersionState
    from .buffer.weights_file import check_weights

    with _errors():
        board = _admitted(redis_url, speculator, f"promote {number}")
        if not unchecked:
            check_weights(board.read(), number)
        board.move(number, VersionState.LIVE, _operator(), why)
        typer.echo(f"version {number} is live on the board")


@app.command()
def rollback(
    why: Why = "rolled back by hand", redis_url: RedisUrl = LOCAL_REDIS, speculator: Speculator = "default"
) -> None:
    """Take the canary off; without one, roll the live version back to the one before it."""
    with _errors():
        state = _admitted(redis_url, speculator, "rollback").roll_back(_operator(), why)
        typer.echo(f"version {state.live} is live on the board, and no version is canary")


@token.command("set")
def token_set(why: Why = "set by hand", redis_url: RedisUrl = LOCAL_REDIS, speculator: Speculator = "default") -> None:
    """Set the token that operators show in PACELINE_OPERATOR_TOKEN; only a salted hash of it is kept.

    The new token is the first line of stdin, or what PACELINE_OPERATOR_TOKEN holds when stdin is empty. To change a
    token that is set, PACELINE_OPERATOR_TOKEN must hold it.
    """
    from .buffer.config import operator_token

    with _errors():
        _desk(redis_url, speculator).set_token(_new_token(), operator_token(), _operator(), why)
        typer.echo(f"{speculator}: promote, rollback and token set ask for PACELINE_OPERATOR_TOKEN from now on")


@app.command()
def audit(
    newest: Annotated[int, typer.Option(min=1, help="Entries to show.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    redis_url: RedisUrl = LOCAL_REDIS,
    speculator: Speculator = "default",
) -> None:
    """Show who changed what on the board, when and why, and which operators were refused; newest last."""
    import json

    from .buffer.audit import audit_fields, audit_line, audit_trail

    with _errors():
        events, others = _board(redis_url, speculator).events(), _desk(redis_url, speculator).history()
        for entry in audit_trail(events, others)[-newest:]:
            typer.echo(json.dumps(audit_fields(entry)) if as_json else audit_line(entry))


@app.command()
def check() -> None:
    """Check that the installed SGLang offers every hook target; exit code 1 says that capture would be off."""
    import os
    import subprocess

    from .serving.launch.server import inspection_plan

    plan = inspection_plan(os.environ)
    raise typer.Exit(subprocess.run(plan.argv, env=dict(plan.env), check=False).returncode)


@app.command()
def demo(
    requests: Annotated[int, typer.Option(min=8, help="Requests to send, both domains together.")] = 480,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=8, help="New tokens per request.")] = 96,
    prompts: Annotated[Path | None, typer.Option(help='Your own traffic: lines {"text": ..., "domain": ...}.')] = None,
    data_dir: Annotated[Path, typer.Option(help="Cache of the target, and this run's store.")] = Path(".paceline"),
    keep_running: Annotated[bool, typer.Option(help="Leave the services up until Ctrl-C.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
) -> None:
    """Watch a random draft learn from live traffic until the real server accepts its tokens.

    Exit code 1 says that a request failed, an answer differs from plain decoding, or a trace is unaccounted for.
    """
    from .demo.report import faults
    from .demo.run import DemoOptions, run_demo

    with _errors():
        found = faults(run_demo(DemoOptions(requests, concurrency, max_tokens, prompts, data_dir, keep_running, json)))
        if found:
            _fail("; ".join(found))


def _board(redis_url: str, speculator: str) -> "VersionBoard":
    from .buffer.config import BufferConfig
    from .buffer.redis_board import RedisVersionBoard
    from .buffer.redis_client import connect

    return RedisVersionBoard(connect(redis_url), BufferConfig(speculator=speculator))


def _desk(redis_url: str, speculator: str) -> "OperatorAuth":
    from .buffer.config import BufferConfig
    from .buffer.redis_client import connect
    from .buffer.redis_operator import OperatorAuth

    return OperatorAuth(connect(redis_url), BufferConfig(speculator=speculator))


def _admitted(redis_url: str, speculator: str, act: str) -> "VersionBoard":
    """The board, for an operator who showed the token or needs none."""
    from .buffer.config import operator_token

    _desk(redis_url, speculator).require(operator_token(), _operator(), act)
    return _board(redis_url, speculator)


def _new_token() -> str:
    """Read from where neither a process list nor a shell's history shows it."""
    from .buffer.config import operator_token

    if sys.stdin.isatty():
        return str(typer.prompt("new operator token", hide_input=True, confirmation_prompt=True)).strip()
    return sys.stdin.readline().strip() or operator_token() or ""


def _operator() -> str:
    return f"operator:{getpass.getuser()}"


class _errors:  # noqa: N801 - reads as a clause: with _errors()
    """Turns an error of the house into one line on stderr and exit code 1."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, PacelineError):
            _fail(str(error))


def _fail(message: str) -> NoReturn:
    typer.secho(f"paceline: {message}", fg="red", err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    app()
