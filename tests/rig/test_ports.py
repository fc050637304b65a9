"""A port is given once: a server takes half a minute to bind it, and another's Redis would be there first."""

import socket
import subprocess
import sys

import pytest
from paceline.rig.readiness import free_port

#: Draws the port it is given, and then as always.
DRAWS_AGAIN = """
import random, sys
from paceline.rig.readiness import free_port
draws, draw = [int(sys.argv[1])], random.SystemRandom.randrange
random.SystemRandom.randrange = lambda self, *ends: draws.pop() if draws else draw(self, *ends)
print(free_port())
"""


def test_a_port_is_given_once_in_whatever_process() -> None:
    port = free_port()
    drawn = subprocess.run([sys.executable, "-c", DRAWS_AGAIN, str(port)], capture_output=True, text=True, check=True)
    assert int(drawn.stdout) != port
    with socket.socket() as another, pytest.raises(OSError, match="already in use"):
        another.bind(("127.0.0.1", port))


def test_a_server_binds_its_port_as_often_as_it_starts_and_nobody_is_there_before() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(("127.0.0.1", port)) as client,
        ):
            taken, caller = server.accept()
            with taken:
                assert caller == client.getsockname()


def test_no_port_is_one_that_linux_or_sglang_picks_for_itself() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert min(ports) > 10_080  # a browser refuses that one
    assert max(ports) < 22_000  # from here to 29999 SGLang picks, and from 32768 Linux
