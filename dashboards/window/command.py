"""`paceline window`: its options. What it needs is imported when it runs; what an operator may do is handed in."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ..commands.access import RedisUrl, read_settings
from ..terminal import needing_extra, one_line_errors

if TYPE_CHECKING:
    from ...buffer.board_access import BoardAccess
    from .acts import Acts

    #: From the way to a speculator's board, by its name, what may be done from the page.
    ActsOf = Callable[[Callable[[str], BoardAccess]], Acts]

AllowHost = Annotated[list[str] | None, typer.Option(help="Further name it is reached by; repeatable.")]


def window_command(acts_of: "ActsOf") -> Callable[..., None]:
    """The command, for the command line to add."""

    def window(
        host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8780,
        allow_host: AllowHost = None,
        redis_url: RedisUrl = None,
    ) -> None:
        """Serve the live page of all speculators in Redis until Ctrl-C: is it faster, what drafts, what is wrong?"""
        with one_line_errors():
            _serve(acts_of, host, port, allow_host or [], redis_url)

    return window


def _serve(acts_of: "ActsOf", host: str, port: int, allowed_hosts: list[str], redis_url: str | None) -> None:
    from ...buffer.board_access import list_speculators, open_board

    with needing_extra("window"):
        from .serve import serve_window
    settings = read_settings()
    access = functools.cache(functools.partial(open_board, settings, redis_url))
    names = functools.partial(list_speculators, settings, redis_url)
    typer.echo(f"paceline window: http://{host}:{port}/ until Ctrl-C")
    serve_window(
        names, lambda name: access(name).board, acts_of(access), host=host, port=port, allowed_hosts=allowed_hosts
    )
