"""`paceline window`: its options, and what the page may have done. What it needs is imported when it runs."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ..commands.access import RedisUrl, read_settings
from ..terminal import needing_extra, operator

if TYPE_CHECKING:
    from ...buffer.board.board_access import BoardAccess
    from .acts import Acts

AllowHost = Annotated[list[str] | None, typer.Option(help="Further name it is reached by; repeatable.")]


def window(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8780,
    allow_host: AllowHost = None,
    redis_url: RedisUrl = None,
) -> None:
    """Serve the live page of all speculators in Redis until Ctrl-C: is it faster, what drafts, what is wrong?

    It starts without Redis, and says so. Exit code 1: the port is taken, or a setting is wrong.
    """
    from ...buffer.board.board_access import check_redis_url, list_speculators, open_board
    from ...buffer.errors import ConfigError

    with needing_extra("window"):
        from .serve import listen, serve_window
    settings = read_settings()
    check_redis_url(settings, redis_url)
    access = functools.cache(functools.partial(open_board, settings, redis_url))
    names = functools.partial(list_speculators, settings, redis_url)
    try:
        listening = listen(host, port)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error}, expected a free port of this machine") from error
    typer.echo(f"paceline window: http://{host}:{port}/ until Ctrl-C")
    hosts = {host, *(allow_host or ())}
    serve_window(names, lambda name: access(name).board, _acts(access), listening, allowed_hosts=hosts)


def _acts(access: "Callable[[str], BoardAccess]") -> "Acts":
    """Promote and roll back, by whoever started the page: it only reads by itself."""
    from ...buffer.board.operator_acts import promote_as_seen, record_unheard, roll_back_as_seen
    from .acts import Acts

    by = f"{operator()}, on the page"
    return Acts(
        lambda order, token: promote_as_seen(access(order.speculator), order, token, by),
        lambda order, token: roll_back_as_seen(access(order.speculator), order, token, by),
        lambda speculator, acts: record_unheard(access(speculator), acts, by),
    )
