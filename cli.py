"""See whether drafts pay, promote or roll back one, and serve and learn with SGLang: `paceline status` first."""

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .dashboards.commands.access import AsJsonLines, RedisUrl, Speculator, open_access, read_settings
from .dashboards.commands.asking import asking
from .dashboards.commands.explaining import explaining
from .dashboards.commands.exporting import exporting
from .dashboards.commands.sizing import sizing
from .dashboards.commands.versions import versions
from .dashboards.terminal import Debug, Door, fail, needing_extra, new_token, operator
from .dashboards.window.command import window

if TYPE_CHECKING:
    from .buffer.board.version import BoardState
    from .buffer.settings.sources import Settings
    from .dashboards.doctor.board_side import AliasLook

app = typer.Typer(cls=Door, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(asking)
app.add_typer(explaining)
app.add_typer(exporting)
app.add_typer(sizing)
app.add_typer(versions, name="versions")
app.command()(window)
token = typer.Typer(no_args_is_help=True, help="The operator token, which acts on the board ask for once it is set.")
app.add_typer(token, name="token")
draft = typer.Typer(no_args_is_help=True, help="Drafts for a target that has none.")
app.add_typer(draft, name="draft")

Unchecked = Annotated[bool, typer.Option("--unchecked", help="Skip the check of the weights (no such disk here).")]
Wait = Annotated[float, typer.Option(min=0.0, help="Seconds to wait until every server drafts with it; 0: do not.")]
Why = Annotated[str, typer.Option(help="Reason for the change, kept on the board.")]


@app.callback(help=__doc__)
def _main(debug: Debug = False) -> None:
    """What every command has in common; Door reads it."""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(context: typer.Context) -> None:
    """Start SGLang with paceline: `paceline serve -- <any SGLang flags>`. With `--device cpu` it runs without a GPU."""
    from .serving.launch.server import launch_plan, run_server, say_what_is_off

    say_what_is_off(read_settings())
    raise typer.Exit(run_server(launch_plan(context.args, os.environ)))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def pacing_costs(
    context: typer.Context,
    *,
    out: Annotated[Path, typer.Option(help="The file, as PACELINE_PACING_COSTS names it.")] = Path("pacing-costs.json"),
    batch: Annotated[list[int], typer.Option(min=1, help="Requests at the same time; repeatable.")] = [1, 4, 8],  # noqa: B006
    max_steps: Annotated[int, typer.Option(min=1, help="Longest draft.")] = 8,
    plain: Annotated[bool, typer.Option("--plain", help="Then measure the server without its draft, too.")] = False,
) -> None:
    """Measure what a decode step costs, by batch size and draft steps: `paceline pacing-costs -- <SGLang flags>`.

    Starts a server with these flags for some minutes, and writes the table that PACELINE_PACING_COSTS names.
    """
    with needing_extra("serving"):
        from .serving.launch.pacing_costs import measured_costs
    found = measured_costs(
        context.args,
        read_settings(),
        os.environ,
        batches=batch,
        max_steps=max_steps,
        is_plain_measured=plain,
        say=typer.echo,
    )
    out.write_text(found.text(), encoding="utf-8")
    for line in found.lines():
        typer.echo(line)
    typer.echo(f"{out} is for PACELINE_PACING_COSTS")


@app.command()
def learn(
    *,
    beat: Annotated[bool, typer.Option(help="Also start the rounds (one process does).")] = True,
    nproc_per_node: Annotated[int, typer.Option(min=1, help="Devices of this machine to train on, by torchrun.")] = 1,
) -> None:
    """Run a learner."""
    with needing_extra("learner"):
        from .learner.app import run_worker
        from .learner.config import from_env
    if nproc_per_node > 1:
        from .learner.ranks import launch

        launch(nproc_per_node, beat=beat)
    run_worker(from_env(), beat=beat)


@app.command()
def promote(
    number: int,
    *,
    why: Why = "promoted by an operator",
    unchecked: Unchecked = False,
    wait: Wait = 30.0,
    redis_url: RedisUrl = None,
    speculator: Speculator = None,
) -> None:
    """Make version NUMBER live, if its weights are those that were published, and wait until the servers draft with it.

    They swap it in while they serve. Exit code 1: it was refused, or a server that is alive has not taken it in time.
    """
    from .buffer.board.stored_weights import check_published
    from .buffer.board.version import VersionState
    from .dashboards.adoption import say_adoption

    access = open_access(redis_url, speculator)
    board = access.board_for(operator(), f"promote {number}")
    if not unchecked:
        check_published(board.read(), number, access.store)
    board.move(number, VersionState.LIVE, operator(), why)
    raise typer.Exit(say_adoption(board, number, wait, typer.echo))


@app.command()
def rollback(
    why: Why = "rolled back by an operator",
    expect: Annotated[int | None, typer.Option(help="Refuse unless this version is live or canary.")] = None,
    redis_url: RedisUrl = None,
    speculator: Speculator = None,
) -> None:
    """End the canary. If there is none, roll the live version back to the one before it.

    Exit code 1: there is nothing to roll back, or the version of --expect is neither live nor canary.
    """
    board = open_access(redis_url, speculator).board_for(operator(), "rollback")
    state = board.roll_back(operator(), why, expect)
    typer.echo(f"version {state.live} is live on the board, and there is no canary")


@app.command()
def forget(member: str, redis_url: RedisUrl = None, speculator: Speculator = None) -> None:
    """Say that a silent MEMBER, such as replica:NAME, is gone for good, so that its silence is no alarm any more.

    Exit code 1: no such member was seen in the last 7 days, or it is alive.
    """
    from .buffer.board.farewell import say_ended

    board = open_access(redis_url, speculator).board_for(operator(), f"forget {member}")
    say_ended(board, member)
    typer.echo(f"{member} is gone for good, says the board; it is a member again as soon as it beats")


@app.command()
def restore(number: int, redis_url: RedisUrl = None, speculator: Speculator = None) -> None:
    """Fetch the weights of draft NUMBER from MLflow, if they were removed from disk, so that it can be promoted."""
    from .buffer.settings.fields import configured

    with needing_extra("learner"):
        from .learner.config import TrackingConfig
        from .learner.delivery.restore import restore as restore_draft
    access = open_access(redis_url, speculator)
    mlflow = configured(TrackingConfig, read_settings())
    model = mlflow.model(access.speculator)
    typer.echo(restore_draft(access.board.read(), number, mlflow.uri, model, store=access.store))


@app.command()
def reproduce(number: int) -> None:
    """Fit draft NUMBER again from its checkpoint and its traces, on the learner's machine, and compare the digests.

    Publishes nothing. Exit code 1: another draft came out. 2: its traces or its checkpoint are gone.
    """
    with needing_extra("learner"):
        from .learner.config import from_env
        from .learner.reproduce import reproduce_draft
    found = reproduce_draft(from_env(), number)
    typer.echo(found.sentence)
    raise typer.Exit({True: 0, False: 1, None: 2}[found.is_equal])


@token.command("set")
def token_set(why: Why = "set by an operator", redis_url: RedisUrl = None, speculator: Speculator = None) -> None:
    """Set the token that operators must have in PACELINE_OPERATOR_TOKEN. Only a salted hash of it is stored.

    The new token is the first line of stdin or, if stdin is empty, the value of PACELINE_OPERATOR_TOKEN. To change a
    token, PACELINE_OPERATOR_TOKEN must hold the one in force.
    """
    access = open_access(redis_url, speculator)
    access.auth.set_token(new_token() or access.token or "", access.token, operator(), why)
    acts = "promote, rollback, forget and token set"
    typer.echo(f"{access.speculator}: {acts} ask for PACELINE_OPERATOR_TOKEN from now on")


@draft.command("init")
def draft_init(
    target: Annotated[str, typer.Argument(help="Folder or Hugging Face id of the target.")],
    out: Annotated[Path, typer.Option(help="New folder for the draft.")] = Path("draft"),
    *,
    text: Annotated[list[Path] | None, typer.Option(help="Text file to choose its tokens by; repeatable.")] = None,
    traffic: Annotated[bool, typer.Option("--traffic", help="Choose them by the traces in Redis (too).")] = False,
    vocab: Annotated[
        int | None, typer.Option(min=1, help="Number of tokens; if not given, see docs/operations.md.")
    ] = None,
) -> None:
    """Write a first, untrained draft for TARGET, and print how to serve and train it."""
    with needing_extra("learner"):
        from .learner.first_draft import init_draft
        from .serving.sglang_speculation import CHAIN_FLAGS
    settings = read_settings() if traffic else None
    typer.echo(init_draft(target, out, text=text or [], size=vocab, settings=settings, chain_flags=CHAIN_FLAGS))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def doctor(
    context: typer.Context, as_json: AsJsonLines = False, redis_url: RedisUrl = None, speculator: Speculator = None
) -> None:
    """Say what is set up wrong, and what paceline will do on a server: `paceline doctor -- <any SGLang flags>`.

    Starts nothing. Looks at Redis, the board, its members and MLflow; with flags, at a server that would have them.
    Exit code 1: something is wrong. 2: something cannot be told, for example without any flags.
    """
    from .buffer.finding import worst
    from .dashboards.doctor.board_side import examine_board
    from .dashboards.doctor.report import say_findings
    from .serving.launch.server import examination_plan
    from .serving.supported_release import SUPPORTED

    found = read_settings()
    plan = examination_plan(context.args, os.environ)
    own = ["--json"] * as_json + ["--debug"] * context.find_root().params["debug"]
    argv = [*plan.argv[:3], *own, *plan.argv[3:]]
    code = subprocess.run(argv, env=dict(plan.env), check=False).returncode
    findings = examine_board(found, redis_url, speculator=speculator, supported=SUPPORTED, aliases=_aliases(found))
    raise typer.Exit(worst((code, say_findings(findings, as_json=as_json))))


@app.command()
def demo(
    *,
    requests: Annotated[int, typer.Option(min=8, help="Requests to send, both domains together.")] = 480,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at the same time.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=8, help="New tokens per request.")] = 96,
    prompts: Annotated[
        Path | None, typer.Option(help='Your prompts: a file of {"text": ...} or {"messages": ...}.')
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Folder of the trained target, and of this run.")] = Path(".paceline"),
    keep_running: Annotated[bool, typer.Option(help="Keep the services running until Ctrl-C.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="The report goes here, its picture beside it; else into the run's folder.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws the initial draft and, without --prompts, the prompts.")] = 0,
    paced: Annotated[bool, typer.Option("--paced", help="Choose the number of draft steps, none among them.")] = False,
    no_speed: Annotated[bool, typer.Option("--no-speed", help="Compare no tokens per second at the end.")] = False,
    target: Annotated[
        str | None,
        typer.Option(help='Your target: a folder, a Hugging Face id, or "smollm2", a chat model it fetches.'),
    ] = None,
    draft: Annotated[Path | None, typer.Option(help="Its draft; without one, a random one is made.")] = None,
) -> None:
    """Watch a random draft learn from live traffic until the server accepts its tokens; no GPU needed.

    Exit code 1: a request failed, an answer differs from plain decoding, or a trace is unaccounted for.
    """
    with needing_extra("demo"):
        from .demo.report import faults
        from .demo.run import DemoOptions, run_demo
    read_settings()
    options = DemoOptions(
        requests=requests,
        concurrency=concurrency,
        max_tokens=max_tokens,
        prompts=prompts,
        data_dir=data_dir,
        keep_running=keep_running,
        json=json,
        seed=seed,
        is_paced=paced,
        skips_speed=no_speed,
        target=target,
        draft=draft,
    )
    found = faults(run_demo(options))
    if found:
        fail("; ".join(found))


def _aliases(settings: "Settings") -> "AliasLook | None":
    """How doctor asks MLflow for its aliases; None where it is not installed or no URI is set."""
    from .buffer.settings.fields import configured

    if find_spec("mlflow") is None or not settings.is_given("MLFLOW_URI"):
        return None
    from .learner.config import TrackingConfig
    from .learner.delivery.alias_check import check_aliases

    mlflow = configured(TrackingConfig, settings)

    def look(speculator: str, state: "BoardState") -> tuple[bool | None, str]:
        found = check_aliases(mlflow.uri, mlflow.model(speculator), state)
        return found.is_well, found.sentence

    return look


if __name__ == "__main__":
    app()
