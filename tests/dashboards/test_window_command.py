"""`paceline window` as a person starts it: it acts under their name, says that Redis is away, ends quietly."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from fleet import publish
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.redis_operator import OperatorAuth
from paceline.buffer.config import BufferConfig
from paceline.rig.readiness import free_port
from paceline.rig.services import window_service
from waiting import until

TOKEN = "the operator's own token"


@pytest.fixture
def env(redis_url, tmp_path) -> dict[str, str]:
    """Of the command: this Redis, and no file of settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return {**kept, "PACELINE_CONFIG": os.devnull, "PACELINE_REDIS_URL": redis_url}


@pytest.fixture
def page(redis_client, env, tmp_path) -> Iterator[httpx.Client]:
    """The running page, over a board with two versions that were live."""
    board, auth = (make(redis_client, BufferConfig(speculator="demo")) for make in (RedisVersionBoard, OperatorAuth))
    publish(board, 0, 1)
    auth.set_token(TOKEN, None, "operator:ann", "first")
    port = free_port()
    with window_service(port, log=tmp_path / "window.log", env=env):
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, headers={"Origin": url, "X-Paceline-Token": TOKEN}, timeout=60.0) as client:
            until(lambda: answers(client), "the page answers")
            yield client


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/").is_success
    except httpx.TransportError:
        return False


def test_an_act_on_the_page_is_the_act_of_the_person_who_started_it(page, redis_client):
    order = {"speculator": "demo", "number": 1, "was": "live", "why": "worse on prose"}
    assert page.post("/acts/rollback", json=order).json()["live"] == 0
    newest = RedisVersionBoard(redis_client, BufferConfig(speculator="demo")).events()[-1]
    assert newest.by.startswith("operator:")
    assert newest.by.endswith(", on the page")
    assert page.get("/api/draft.json").json()["number"] == 0


def test_it_starts_without_a_redis_and_says_so_and_ends_with_ctrl_c(env):
    port = free_port()
    command = [sys.executable, "-m", "paceline.cli", "window", "--port", str(port)]
    away = {**env, "PACELINE_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    with subprocess.Popen(command, env=away, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client:
            until(lambda: answers(client), "the page answers")
            answer = client.get("/api/headline.json")
        started.send_signal(signal.SIGINT)
        said = started.communicate(timeout=60)[0]
    assert (answer.status_code, "start Redis" in answer.json()["not_known"]) == (503, True)
    assert said == f"paceline window: http://127.0.0.1:{port}/ until Ctrl-C\n"
    assert started.returncode == 0


@pytest.mark.parametrize("command", ["window", "exporter"])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("foo://x", "PACELINE_REDIS_URL: got "),
        ("redis://127.0.0.1:1/xx", "expected redis://host:port/db"),
        (None, "expected a free port of this machine"),
    ],
    ids=["scheme", "database", "taken port"],
)
def test_what_cannot_be_served_is_said_in_one_line_before_anything_is_announced(env, command, url, said):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = free_port() if url else taken.getsockname()[1]
        words = [sys.executable, "-m", "paceline.cli", command, "--port", str(port)]
        ended = subprocess.run(
            [*words, *(["--redis-url", url] if url else [])],
            check=False,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert said in ended.stderr
