"""`paceline status`, `alarms`, `audit`, `settings` and `readings`."""

import json
import os
from functools import partial
from typing import Annotated

import typer

from ...buffer.finding import exit_code
from .access import AsJson, AsJsonLines, RedisUrl, Speculator, answering, open_known

asking = typer.Typer()


@asking.command()
def status(
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again whenever it changes, until Ctrl-C.")] = False,
    redis_url: RedisUrl = None,
    speculator: Speculator = None,
) -> None:
    """Is it faster, is it fresh, what did the last swap do, does the loop lose anything, is anything wrong?

    One sentence each, and a row per member of the last 7 days. Exit code 0: all is well. 1: something is wrong. 2:
    something cannot be told.
    """
    from rich.console import Console

    from ..answer import answer
    from ..served import HISTORY_S
    from ..snapshot import take
    from ..watch import watch as keep_watching

    with answering():
        access = open_known(redis_url, speculator)
        look = partial(take, access.board, access.speculator, HISTORY_S)
        if watch:
            keep_watching(lambda: answer(look()), Console(), as_json=as_json)
            return
        found = answer(look())
        if as_json:
            typer.echo(json.dumps(found.as_json(), indent=2))
        else:
            Console().print(found.view())
        raise typer.Exit(found.code)


@asking.command()
def alarms(as_json: AsJsonLines = False, redis_url: RedisUrl = None, speculator: Speculator = None) -> None:
    """List what is wrong now and what was: alarms of servers and learners, and members that fell silent.

    Exit code 0: nothing is wrong. 1: an alarm is active. 2: nobody is there to say, or Redis does not answer.
    """
    from rich.console import Console

    from ..alarm_lines import alarms_table, standing_and_recent
    from ..answer import findings_grid
    from ..headline import wrong
    from ..snapshot import take

    with answering():
        access = open_known(redis_url, speculator)
        seen = take(access.board, access.speculator, history_s=0.0)
        lines = standing_and_recent(seen)
        if as_json:
            for line in lines:
                typer.echo(json.dumps(line.as_json()))
        said = wrong(seen, lines)
        if not as_json:
            Console().print(*([alarms_table(lines)] if lines else []), findings_grid([said]), sep="\n")
        raise typer.Exit(exit_code([said]))


@asking.command()
def audit(
    newest: Annotated[int, typer.Option(min=1, help="Entries to show.")] = 100,
    as_json: AsJsonLines = False,
    redis_url: RedisUrl = None,
    speculator: Speculator = None,
) -> None:
    """Show who changed what on the board, when and why, and which operators were refused; newest last."""
    from ...buffer.board.audit import audit_fields, audit_line, audit_trail
    from ...policies.verdict_words import sentence

    with answering():
        access = open_known(redis_url, speculator)
        trail = audit_trail(access.board.events(), access.auth.history(), sentence)
        for entry in trail[-newest:]:
            typer.echo(json.dumps(audit_fields(entry)) if as_json else audit_line(entry))
        if not trail:
            typer.echo(f"nobody has changed anything on the board of {access.speculator} yet", err=True)


@asking.command()
def settings(
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md.")] = False,
) -> None:
    """List every setting: its value, and whether the environment, a file or the default gives it.

    Exit code 1: a name is set that is no setting, or a value is out of range.
    """
    from ...buffer.settings.listing import settings_json, settings_lines, settings_markdown
    from ...buffer.settings.sources import read_settings

    with answering():
        if as_markdown:
            typer.echo(settings_markdown(), nl=False)
            return
        found = read_settings(os.environ)
        typer.echo(json.dumps(settings_json(found), indent=2) if as_json else "\n".join(settings_lines(found)))
        found.require_known()


@asking.command()
def readings() -> None:
    """Say what every figure means: unit, formula, who counts it and how old it may be; as docs/monitoring.md ends."""
    from ...policies.readings.page import readings_markdown

    typer.echo(readings_markdown(), nl=False)
