"""Runs the page until it is interrupted."""

from collections.abc import Callable, Collection

import uvicorn

from ...buffer.base import VersionBoard
from .acts import Acts
from .app import make_app
from .readings import Readings

#: Streams are endless, so a server that ends does not wait for them.
_END_S = 1


def serve_window(
    list_names: Callable[[], list[str]],
    open_board: Callable[[str], VersionBoard],
    acts: Acts,
    *,
    host: str,
    port: int,
    allowed_hosts: Collection[str] = (),
) -> None:
    """Serve at `host`:`port`; blocks until Ctrl-C or SIGTERM. The callables are called in threads."""
    app = make_app(Readings(list_names, open_board), acts, allowed_hosts={host, *allowed_hosts})
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_END_S,
        lifespan="off",
        ws="none",
    )
