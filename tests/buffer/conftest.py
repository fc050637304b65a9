"""A Redis behind TLS that admits ACL users only, for every test that reaches Redis the secure way.

The bundled Redis has no TLS, so a relay in front of it terminates TLS, as stunnel does in production.
"""

import os
import select
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import redis

PASSWORD = "s3cret/päss@w?rd#1:x"
#: The ACL rules that docs/faults.md gives to a speculator's users.
RULES = {
    "courier": "on >PASSWORD ~paceline:{default}:* +@all -@admin -@dangerous",
    "learner": "on >PASSWORD ~paceline:{default}:* ~paceline.learn.default* ~_kombu* ~unacked* ~*.celery.pidbox* &* "
    "+@all -@admin -@dangerous",
}


class TlsRelay:
    """Terminates TLS on a free port of localhost and forwards the bytes to a plain port; one thread per connection."""

    def __init__(self, certificate: Path, key: Path, plain_port: int) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate, key)
        self._plain_port = plain_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):  # shut down by stop
            while True:
                raw, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._carry, args=(raw,)))
                self._threads[-1].start()

    def _carry(self, raw: socket.socket) -> None:
        plain_address = ("127.0.0.1", self._plain_port)
        # A client that distrusts the certificate disconnects in the middle of the handshake.
        with (
            raw,
            suppress(OSError),
            socket.create_connection(plain_address) as plain,
            self._context.wrap_socket(raw, server_side=True) as tls,
        ):
            self._open |= {tls, plain}
            while True:
                readable, _, _ = select.select([tls, plain], [], [])
                source, sink = (tls, plain) if tls in readable else (plain, tls)
                if not (data := source.recv(65536)):
                    return
                sink.sendall(data)
                while tls.pending():
                    plain.sendall(tls.recv(65536))

    def stop(self) -> None:
        for opened in (self._listener, *self._open):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()


def certificate_for(folder: Path, names: str) -> tuple[Path, Path]:
    """A self-signed certificate, which is its own CA, and its key."""
    openssl = shutil.which("openssl")
    if not openssl:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no openssl on PATH to make a certificate with")
    certificate, key = folder / f"{quote(names, '')}.pem", folder / f"{quote(names, '')}.key"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-keyout", key, "-out", certificate]
    subject = ["-subj", "/CN=paceline test", "-addext", f"subjectAltName={names}"]
    command = [openssl, "req", "-x509", "-nodes", "-days", "1", *curve, *files, *subject]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@dataclass(frozen=True)
class SecureRedis:
    """A Redis that asks for user and password, behind TLS for `localhost`."""

    url: str
    plain_url: str  # the same Redis without TLS in front
    ca: Path
    other_ca: Path  # signed something else
    rules: dict[str, str]  # user -> rules, with PASSWORD in place of the password

    def at(self, host: str) -> str:
        """The same Redis under another name of this machine."""
        parts = urlsplit(self.url)
        return f"rediss://{parts.netloc.rpartition('@')[0]}@{host}:{parts.port}/0"

    def of(self, user: str) -> str:
        """The same Redis for another user."""
        return self.url.replace("//courier:", f"//{user}:", 1)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Path, Path], Path]:
    folder = tmp_path_factory.mktemp("certificates")
    return certificate_for(folder, "DNS:localhost"), certificate_for(folder, "DNS:elsewhere")[0]


@pytest.fixture
def secure_redis(own_redis, certificates, monkeypatch) -> Iterator[SecureRedis]:
    with redis.Redis.from_url(own_redis.url) as admin:
        for name, rules in RULES.items():
            admin.execute_command("ACL", "SETUSER", name, *rules.replace("PASSWORD", PASSWORD).split(" "))
        admin.execute_command("ACL", "SETUSER", "default", "off")
    (certificate, key), other = certificates
    plain = urlsplit(own_redis.url)
    relay = TlsRelay(certificate, key, plain.port)
    user = f"courier:{quote(PASSWORD, '')}"
    monkeypatch.setenv("PACELINE_REDIS_CA", str(certificate))
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    url = f"rediss://{user}@localhost:{relay.port}/0"
    yield SecureRedis(url, f"redis://{user}@127.0.0.1:{plain.port}/0", certificate, other, RULES)
    relay.stop()
