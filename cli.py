"""Keep the draft model of a speculative-decoding SGLang server up to date with its traffic."""

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .dashboards.terminal import fail, needing_extra, one_line_errors

if TYPE_CHECKING:
    from .buffer.board_access import BoardAccess
    from .buffer.settings.sources import Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
token = typer.Typer(no_args_is_help=True, help="The operator token, which promote and rollback ask for once it is set.")
app.add_typer(token, name="token")
draft = typer.Typer(no_args_is_help=True, help="Drafts for a target that has none.")
app.add_typer(draft, name="draft")

RedisUrl = Annotated[str | None, typer.Option("--redis-url", help="Redis; if not given, PACELINE_REDIS_URL.")]
Speculator = Annotated[
    str | None, typer.Option(help="Whose board; if not given, PACELINE_SPECULATOR, or the only one.")
]
Unchecked = Annotated[bool, typer.Option("--unchecked", help="Skip the check of the weights (no such disk here).")]
Why = Annotated[str, typer.Option(help="Reason for the change, kept on the board.")]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(context: typer.Context) -> None:
    """Start SGLang with paceline: `paceline serve -- <any SGLang flags>`. With `--device cpu` it runs without a GPU."""
    from .serving.launch.server import launch_plan, run_server

    with one_line_errors():
        _settings()
        raise typer.Exit(run_server(launch_plan(context.args, os.environ)))


@app.command()
def learn(beat: Annotated[bool, typer.Option(help="Also start the rounds (one process does).")] = True) -> None:
    """Run a learner."""
    with one_line_errors():
        with needing_extra("learner"):
            from .learner.app import run_worker
            from .learner.config import from_env
        run_worker(from_env(), beat=beat)


@app.command()
def settings(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md.")] = False,
) -> None:
    """List every setting: its value, and whether the environment, a file or the default gives it.

    Exit code 1: a name is set that is no setting, or a value is out of range.
    """
    from .buffer.settings.listing import settings_json, settings_lines, settings_markdown
    from .buffer.settings.sources import read_settings

    with one_line_errors():
        if as_markdown:
            typer.echo(settings_markdown(), nl=False)
            return
        found = read_settings(os.environ)
        typer.echo(json.dumps(settings_json(found), indent=2) if as_json else "\n".join(settings_lines(found)))
        found.require_known()


@app.command()
def versions(redis_url: RedisUrl = None, speculator: Speculator = None) -> None:
    """List draft versions with their state, scores and the reason of the last change."""
    from rich.console import Console

    from .dashboards.tables import version_lines, versions_table

    with one_line_errors():
        Console().print(versions_table(version_lines(_access(redis_url, speculator).board.read())))


@app.command()
def alarms(redis_url: RedisUrl = None, speculator: Speculator = None) -> None:
    """List active and recent alarms of servers and learners."""
    from rich.console import Console

    from .dashboards.tables import alarm_lines, alarms_table

    with one_line_errors():
        Console().print(alarms_table(alarm_lines(_access(redis_url, speculator).board.heartbeats())))


@app.command()
def promote(
    number: int,
    why: Why = "promoted by an operator",
    unchecked: Unchecked = False,
    redis_url: RedisUrl = None,
    speculator: Speculator = None,
) -> None:
    """Make version NUMBER live, if its weights are those that were published. Servers swap it in while they serve."""
    from .buffer.version import VersionState
    from .buffer.weights_file import check_weights

    with one_line_errors():
        board = _access(redis_url, speculator).board_for(_operator(), f"promote {number}")
        if not unchecked:
            check_weights(board.read(), number)
        board.move(number, VersionState.LIVE, _operator(), why)
        typer.echo(f"version {number} is live on the board")


@app.command()
def rollback(
    why: Why = "rolled back by an operator", redis_url: RedisUrl = None, speculator: Speculator = None
) -> None:
    """End the canary. If there is none, roll the live version back to the one before it."""
    with one_line_errors():
        state = _access(redis_url, speculator).board_for(_operator(), "rollback").roll_back(_operator(), why)
        typer.echo(f"version {state.live} is live on the board, and there is no canary")


@token.command("set")
def token_set(why: Why = "set by an operator", redis_url: RedisUrl = None, speculator: Speculator = None) -> None:
    """Set the token that operators must have in PACELINE_OPERATOR_TOKEN. Only a salted hash of it is stored.

    The new token is the first line of stdin or, if stdin is empty, the value of PACELINE_OPERATOR_TOKEN. To change a
    token, PACELINE_OPERATOR_TOKEN must hold the one in force.
    """
    with one_line_errors():
        access = _access(redis_url, speculator)
        access.auth.set_token(_new_token() or access.token or "", access.token, _operator(), why)
        typer.echo(f"{access.speculator}: promote, rollback and token set ask for PACELINE_OPERATOR_TOKEN from now on")


@app.command()
def audit(
    newest: Annotated[int, typer.Option(min=1, help="Entries to show.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    redis_url: RedisUrl = None,
    speculator: Speculator = None,
) -> None:
    """Show who changed what on the board, when and why, and which operators were refused; newest last."""
    from .buffer.audit import audit_fields, audit_line, audit_trail

    with one_line_errors():
        access = _access(redis_url, speculator)
        for entry in audit_trail(access.board.events(), access.auth.history())[-newest:]:
            typer.echo(json.dumps(audit_fields(entry)) if as_json else audit_line(entry))


@draft.command("init")
def draft_init(
    target: Annotated[str, typer.Argument(help="Folder or Hugging Face id of the target.")],
    out: Annotated[Path, typer.Option(help="New folder for the draft.")] = Path("draft"),
    text: Annotated[list[Path] | None, typer.Option(help="Text file to choose its tokens by; repeatable.")] = None,
    traffic: Annotated[bool, typer.Option("--traffic", help="Choose them by the traces in Redis (too).")] = False,
    vocab: Annotated[
        int | None, typer.Option(min=1, help="Number of tokens; if not given, see docs/drafts.md.")
    ] = None,
) -> None:
    """Write a first, untrained draft for TARGET, and print how to serve and train it."""
    with one_line_errors():
        with needing_extra("learner"):
            from .learner.first_draft import init_draft
            from .serving.sglang_speculation import CHAIN_FLAGS
        typer.echo(init_draft(target, out, text or [], vocab, _settings() if traffic else None, CHAIN_FLAGS))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Say what paceline will do on a server with these flags, and why not: `paceline doctor -- <any SGLang flags>`.

    Starts nothing. Exit code 1: something is wrong. 2: something cannot be told, for example without any flags.
    """

    from .serving.launch.server import examination_plan

    with one_line_errors():
        _settings()
        plan = examination_plan(context.args, os.environ)
        argv = [*plan.argv[:3], *(["--json"] if as_json else []), *plan.argv[3:]]
        raise typer.Exit(subprocess.run(argv, env=dict(plan.env), check=False).returncode)


@app.command()
def demo(
    requests: Annotated[int, typer.Option(min=8, help="Requests to send, both domains together.")] = 480,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=8, help="New tokens per request.")] = 96,
    prompts: Annotated[Path | None, typer.Option(help='Your prompts: a file of {"text": ..., "domain": ...}.')] = None,
    data_dir: Annotated[Path, typer.Option(help="Folder of the trained target, and of this run.")] = Path(".paceline"),
    keep_running: Annotated[bool, typer.Option(help="Keep the services running until Ctrl-C.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws the initial draft and, without --prompts, the prompts.")] = 0,
) -> None:
    """Watch a random draft learn from live traffic until the server accepts its tokens; no GPU needed.

    Exit code 1: a request failed, an answer differs from plain decoding, or a trace is unaccounted for.
    """
    with one_line_errors():
        with needing_extra("demo"):
            from .demo.report import faults
            from .demo.run import DemoOptions, run_demo
        _settings()
        options = DemoOptions(requests, concurrency, max_tokens, prompts, data_dir, keep_running, json, seed)
        found = faults(run_demo(options))
        if found:
            fail("; ".join(found))


def _settings() -> "Settings":
    """What is set here. ConfigError when a name is no setting."""
    from .buffer.settings.sources import read_settings

    found = read_settings(os.environ)
    found.require_known()
    return found


def _access(redis_url: str | None, speculator: str | None) -> "BoardAccess":
    from .buffer.board_access import open_board

    return open_board(_settings(), redis_url, speculator)


def _new_token() -> str:
    """The token typed in or the first line of stdin: neither a process list nor a shell's history shows it."""
    if sys.stdin.isatty():
        return str(typer.prompt("new operator token", hide_input=True, confirmation_prompt=True)).strip()
    return sys.stdin.readline().strip()


def _operator() -> str:
    return f"operator:{getpass.getuser()}"


if __name__ == "__main__":
    app()
