"""The command line: the one place, with demo/, where the rooms are wired together."""

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .buffer.errors import PacelineError

if TYPE_CHECKING:
    from .buffer.base import VersionBoard

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

RedisUrl = Annotated[str, typer.Option("--redis-url", envvar="PACELINE_REDIS_URL", help="Where the buffer lives.")]
Speculator = Annotated[str, typer.Option(envvar="PACELINE_SPECULATOR", help="Which stream and board.")]
Why = Annotated[str, typer.Option(help="Reason, written to the board.")]

LOCAL_REDIS = "redis://127.0.0.1:6379/0"


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(context: typer.Context) -> None:
    """Start SGLang with the plugin: `paceline serve -- <any sglang flags>`; with `--device cpu` on the CPU host."""
    import os

    from .serving.launch import launch_plan, run_server

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

    from .dashboards.readings import version_lines, versions_table

    with _errors():
        Console().print(versions_table(version_lines(_board(redis_url, speculator).read())))


@app.command()
def promote(
    number: int, why: Why = "promoted by hand", redis_url: RedisUrl = LOCAL_REDIS, speculator: Speculator = "default"
) -> None:
    """Make version NUMBER live; servers swap it in between two iterations."""
    from .buffer.version import VersionState

    with _errors():
        _board(redis_url, speculator).move(number, VersionState.LIVE, _operator(), why)
        typer.echo(f"version {number} is live on the board")


@app.command()
def rollback(
    why: Why = "rolled back by hand", redis_url: RedisUrl = LOCAL_REDIS, speculator: Speculator = "default"
) -> None:
    """Roll the live version back to the one before it."""
    with _errors():
        state = _board(redis_url, speculator).roll_back(_operator(), why)
        typer.echo(f"version {state.live} is live on the board again")


@app.command()
def check() -> None:
    """Check that the installed SGLang offers every hook target; exit code 1 says that capture would be off."""
    import os
    import subprocess

    from .serving.launch import inspection_plan

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
