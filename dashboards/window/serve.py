"""Runs the page until it is interrupted."""

import socket
from collections.abc import Callable, Collection
from contextlib import suppress

import uvicorn
from fastapi import FastAPI

from ...buffer.board.version_board import VersionBoard
from .acts import Acts
from .app import make_app
from .readings import Readings

#: Streams end by themselves within a second once they are told; what does not is cut off then.
_END_S = 3


class PageServer(uvicorn.Server):
    """A server that ends its streams before it waits for them; they would go on for ever."""

    def __init__(self, app: FastAPI, readings: Readings) -> None:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=_END_S,
            lifespan="off",
            ws="none",
        )
        super().__init__(config)
        self._readings = readings

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, once every stream was told to end."""
        self._readings.close()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; OSError where that cannot be had."""
    (family, *_), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return socket.create_server((host, port), family=family)


def serve_window(
    list_names: Callable[[], list[str]],
    open_board: Callable[[str], VersionBoard],
    acts: Acts,
    listening: socket.socket,
    *,
    allowed_hosts: Collection[str],
) -> None:
    """Serve at the socket; blocks until Ctrl-C or SIGTERM. The callables are called in threads."""
    readings = Readings(list_names=list_names, open_board=open_board)
    app = make_app(readings, acts, allowed_hosts=allowed_hosts)
    with suppress(KeyboardInterrupt):  # raised once all is ended
        PageServer(app, readings).run(sockets=[listening])
