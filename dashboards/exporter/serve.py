"""Serves /metrics until it is interrupted."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, start_http_server

from ...buffer.board.version_board import VersionBoard
from .collector import BoardCollector


def serve_metrics(
    list_names: Callable[[], Sequence[str]],
    open_board: Callable[[str], VersionBoard],
    started: Callable[[], object],
    *,
    host: str,
    port: int,
) -> None:
    """Serve at `host`:`port`, call `started` once it listens, and block until Ctrl-C.

    The other two are called in threads, one for each scrape.

    The registry is its own: SGLang's is of several processes, and nothing of this process is a metric of the board.
    OSError where the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(BoardCollector(list_names, open_board))
    server, thread = start_http_server(port, host, registry)
    started()
    try:
        thread.join()
    except KeyboardInterrupt:
        server.shutdown()
    finally:
        server.server_close()
