"""`paceline explain`."""

import json
from typing import Annotated

import typer

from ...buffer.finding import CANNOT_TELL, WELL
from .access import AsJson, RedisUrl, Speculator, answering, open_known

explaining = typer.Typer()


@explaining.command()
def explain(
    since: Annotated[
        str | None, typer.Option(help="Compare the last minute with so long before it, such as 90s or 1h; else 10m.")
    ] = None,
    draft: Annotated[int | None, typer.Option(help="Compare this draft's service with that of the one before.")] = None,
    *,
    as_json: AsJson = False,
    redis_url: RedisUrl = None,
    speculator: Speculator = None,
) -> None:
    """Why is serving faster or slower than before? The first cause in sentences, then every cause with its share.

    Exit code 2: it cannot be told.
    """
    from rich.console import Console

    from ..explain import as_fields, explained, print_explanation
    from ..snapshot import take

    with answering():
        access = open_known(redis_url, speculator)
        found = explained(take(access.board, access.speculator), since, draft)
        if as_json:
            typer.echo(json.dumps(as_fields(found), indent=2))
        else:
            print_explanation(Console(), found)
        raise typer.Exit(WELL if found.found.request_speed is not None else CANNOT_TELL)
