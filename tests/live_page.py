"""The live page served in this process, for tests that need a real connection."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI
from paceline.dashboards.window.readings import Readings
from paceline.dashboards.window.serve import PageServer
from waiting import until


@contextmanager
def served(app: FastAPI, readings: Readings) -> Iterator[str]:
    """Serve `app` on a free port of this machine; yields its address without a slash at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = PageServer(app, readings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until(lambda: server.started, "the page is served")
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()
