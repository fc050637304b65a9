"""Every form of PACELINE_REDIS_URL that the documents name, on a real Redis: the buffer, Celery's broker, commands."""

import contextlib
import json
import subprocess

import pytest
from kombu import Connection
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import ConfigError
from paceline.buffer.redis_client import broker_url, client_for
from paceline.cli import app
from paceline.rig.readiness import free_port, redis_server
from typer.testing import CliRunner
from waiting import until

PASSWORD = 'p@ss/w#%+?: x"'
QUOTED = "p%40ss%2Fw%23%25%2B%3F%3A%20x%22"


@pytest.fixture(scope="module")
def redis_of_forms(tmp_path_factory):
    """A Redis with a password, on a port and on a socket: what stands for them in FORMS."""
    folder, port = tmp_path_factory.mktemp("redis"), free_port()
    socket, settings = folder / "redis.sock", folder / "redis.conf"
    quoted = json.dumps(PASSWORD)
    settings.write_text(f'requirepass {quoted}\nport {port}\nbind 127.0.0.1\nsave ""\nunixsocket {socket}\n')
    with subprocess.Popen([redis_server(), settings], stdout=subprocess.DEVNULL) as process:
        until(socket.exists, "the socket of Redis")
        yield {"PORT": str(port), "SOCKET": str(socket), "SECRET": QUOTED}
        process.terminate()


FORMS = {
    "redis://:SECRET@127.0.0.1:PORT": 0,
    "redis://:SECRET@127.0.0.1:PORT/0": 0,
    "redis://default:SECRET@127.0.0.1:PORT/3": 3,
    "redis://default:SECRET@localhost:PORT/3/": 3,
    "unix://:SECRET@SOCKET": 0,
    "unix://default:SECRET@SOCKET?db=2": 2,
    "unix://SOCKET?password=SECRET": 0,
    "unix://SOCKET?db=2&username=default&password=SECRET": 2,
}


def filled(form, parts):
    for name, value in parts.items():
        form = form.replace(name, value)
    return form


@pytest.mark.guarantee("redis-urls")
@pytest.mark.parametrize(("form", "database"), FORMS.items(), ids=[*FORMS])
def test_buffer_broker_and_commands_use_the_database_of_the_url(redis_of_forms, monkeypatch, form, database):
    url = filled(form, redis_of_forms)
    with client_for(url) as client:
        assert client.client_info()["db"] == database
        RedisVersionBoard(client, BufferConfig(speculator="urls")).beat("learner:l", MemberStatus(kind="idle"), 60.0)
        with Connection(broker_url(url)) as broker, contextlib.closing(broker.SimpleQueue("urls")) as queue:
            queue.put({"from": form})
            assert client.llen("urls") == 1  # in the same database
            message = queue.get(timeout=10.0)
            message.ack()
        assert message.payload == {"from": form}
    for command in ("versions", "status", "alarms", "audit", "explain"):
        arguments = [command, "--redis-url", url, "--speculator", "urls"]
        answered = CliRunner().invoke(app, arguments)
        assert answered.exit_code in {0, 1, 2}, answered.output
        assert "does not answer" not in answered.output
        assert PASSWORD not in answered.output
        assert QUOTED not in answered.output


@pytest.mark.parametrize(
    "url", ["redis+socket:///run/redis.sock", "sentinel://127.0.0.1:26379", "127.0.0.1:6379", "unix://"]
)
def test_other_forms_are_refused_with_what_is_expected(url):
    with pytest.raises(ConfigError, match=r"PACELINE_REDIS_URL: got .*, expected redis://host:port/db"):
        client_for(url)
