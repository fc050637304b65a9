"""`paceline versions`: all drafts, two of them side by side, or one in full."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from .access import AsJson, AsJsonLines, RedisUrl, Speculator, answering, open_known

if TYPE_CHECKING:
    from ..draft_card import DraftCard

versions = typer.Typer(invoke_without_command=True)


@versions.callback()
def list_versions(
    context: typer.Context,
    compare: Annotated[
        tuple[int, int] | None, typer.Option(help="Two drafts, side by side.", metavar="N M", show_default=False)
    ] = None,
    *,
    newest: Annotated[int, typer.Option(min=1, help="Versions to show.")] = 20,
    as_json: AsJsonLines = False,
    redis_url: RedisUrl = None,
    speculator: Speculator = None,
) -> None:
    """List drafts with their state, what each served, and what was predicted of it; `versions show N` has one in full.

    `served` is the accept length of the requests that ended, with its 95 % interval over requests. `predicted`
    was known before: the draft's own weights, replayed on the newest requests when it was published. It is no quality;
    `error` (served minus predicted) says how far off it was.
    """
    from rich.console import Console

    from ..draft_list import draft_list
    from ..snapshot import take

    if context.invoked_subcommand is not None:
        return
    with answering():
        if compare is not None:
            _compare(compare, redis_url, speculator, as_json=as_json)
            return
        access = open_known(redis_url, speculator)
        found = draft_list(take(access.board, access.speculator), newest)
        if as_json:
            for line in found.as_json():
                typer.echo(json.dumps(line))
        else:
            Console().print(found.view())


@versions.command("show")
def show(number: int, as_json: AsJson = False, redis_url: RedisUrl = None, speculator: Speculator = None) -> None:
    """Show one draft in full: where it comes from, what it was judged on, what it served, and who did what to it."""
    from rich.console import Console

    with answering():
        (card,) = _cards((number,), redis_url, speculator)
        if as_json:
            typer.echo(json.dumps(card.as_json(), indent=2))
        else:
            Console().print(card.view())


def _cards(numbers: tuple[int, ...], redis_url: str | None, speculator: str | None) -> "list[DraftCard]":
    from ..draft_list import draft_card
    from ..snapshot import take

    access = open_known(redis_url, speculator)
    seen = take(access.board, access.speculator)
    events = access.board.events()
    return [draft_card(seen, events, number) for number in numbers]


def _compare(numbers: tuple[int, int], redis_url: str | None, speculator: str | None, *, as_json: bool) -> None:
    from rich.console import Console

    from ..comparison import Comparison

    found = Comparison(*_cards(numbers, redis_url, speculator))
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        Console().print(found.view())
