"""`paceline exporter`."""

from functools import cache, partial
from typing import Annotated

import typer

from ..terminal import needing_extra
from .access import RedisUrl, read_settings

exporting = typer.Typer()


@exporting.command()
def exporter(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8781,
    redis_url: RedisUrl = None,
) -> None:
    """Serve the figures of all speculators in Redis to Prometheus, at /metrics, until Ctrl-C.

    It reads and never writes, and starts without Redis: `paceline_up` says whether that answers. Exit code 1: the port
    is taken, or a setting is wrong.
    """
    from ...buffer.board.board_access import check_redis_url, list_speculators, open_board
    from ...buffer.errors import ConfigError

    with needing_extra("prometheus"):
        from ..exporter.serve import serve_metrics
    found = read_settings()
    check_redis_url(found, redis_url)
    access = cache(partial(open_board, found, redis_url))
    try:
        serve_metrics(
            partial(list_speculators, found, redis_url),
            lambda speculator: access(speculator).board,
            lambda: typer.echo(f"paceline exporter: http://{host}:{port}/metrics until Ctrl-C"),
            host=host,
            port=port,
        )
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error}, expected a free port of this machine") from error
