"""The wheel in the environment of somebody who has SGLang: their own command, their own folder, and no learner.

`make test-wheel` runs this file and no other target does, for it installs torch and SGLang into a fresh environment.
The wheel comes last, by the command of README.

Their machine has a GPU and this one may have none. The CPU host stands in for it, which a user of SGLang's own command
would have no use for: a .pth file names the folder of the stand-ins for `sgl_kernel` and `torchvision`, and command and
environment get the defaults that `paceline serve` would have added. Nothing else is there that README does not tell.
"""

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from made_versions import version_in
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.version_board import VersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_client import connect
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.buffer.stream.trace import DraftTrace
from paceline.buffer.stream.trace_buffer import BufferCounts, TraceBuffer
from paceline.rig.models.target import ensure_random_draft
from paceline.rig.reader import drain_check
from paceline.rig.readiness import free_port
from paceline.rig.services import redis_service
from user_environment import UserEnvironment, make_environment, sglang_server, users_flags, users_settings
from waiting import until
from wheel_build import SOURCES, build_wheel, copy_tree

pytestmark = pytest.mark.installs

PROMPTS = ("import os", "def main(", "class Reader:\n    def", "for line in", "return sorted(", "raise ValueError(")
TOKENS = 40
#: What a learner imports and a server does not.
LEARNERS_OWN = ("celery", "mlflow", "river")


@dataclass(frozen=True)
class Installed:
    """A user's environment with paceline in it."""

    user: UserEnvironment
    before: dict[str, str]  # versions of what was there when paceline came
    after: dict[str, str]


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    """Removed at the end: it takes more than two gigabytes, and pytest would keep it for three runs."""
    with tempfile.TemporaryDirectory(prefix="own-sglang-") as folder:
        user = make_environment(Path(folder))
        before = user.packages()
        wheel = build_wheel(copy_tree(SOURCES, Path(folder) / "source"), Path(folder) / "wheels")
        user.pip_install(f"{wheel}[serving]")
        (user.site / "cpu_host.pth").write_text(str(user.site / "paceline/serving/cpu_host/stubs"), encoding="utf-8")
        yield Installed(user, before, user.packages())


@dataclass(frozen=True)
class Server:
    """A server that the user started with SGLang's own command."""

    user: UserEnvironment
    flags: list[str]  # the user's own
    settings: dict[str, str]
    port: int
    log: Path
    buffer: TraceBuffer
    board: VersionBoard

    def status(self) -> MemberStatus:
        """The last heartbeat of the only replica; empty while it is silent."""
        return next(iter(self.board.heartbeats().values()), MemberStatus())

    def traces(self) -> dict[str, DraftTrace]:
        """By request id; every request has one."""
        until(drain_check(self.status), "the server to deliver its traces")
        entries = list(self.buffer.replay(10_000))
        found = {entry.trace.request_id: entry.trace for entry in entries}
        assert len(found) == len(entries)
        return found


def generate(port: int, label: str) -> dict[str, dict[str, Any]]:
    """Answers to all prompts by request id, greedy, several at a time."""

    def ask(numbered: tuple[int, str]) -> dict[str, Any]:
        params = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": TOKENS}
        body = {"rid": f"{label}-{numbered[0]}", "text": numbered[1], "sampling_params": params}
        reply = httpx.post(f"http://127.0.0.1:{port}/generate", json=body, timeout=300.0, trust_env=False)
        return dict(reply.raise_for_status().json())

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return {reply["meta_info"]["id"]: reply for reply in pool.map(ask, enumerate(PROMPTS))}


@pytest.fixture(scope="module")
def server(
    installed: Installed, models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    user = installed.user
    folder = tmp_path_factory.mktemp("server")
    redis_port = free_port()
    port = free_port()
    flags = users_flags(models)
    settings = users_settings(f"redis://127.0.0.1:{redis_port}/0", flags)
    own = ("python", "-m", "sglang.launch_server")
    sglang = sglang_server(user, own, flags, settings, port, folder / "sglang.log")
    with redis_service(folder / "redis", redis_port), connect(settings["PACELINE_REDIS_URL"]) as client, sglang:
        buffer = RedisTraceBuffer(client, BufferConfig())
        board = RedisVersionBoard(client, BufferConfig())
        until(board.heartbeats, "the replica's first heartbeat")
        yield Server(user, flags, settings, port, sglang.log, buffer, board)


@dataclass(frozen=True)
class Served:
    """Answers and traces by request id, and what became of the traces; a request has one."""

    answers: dict[str, dict[str, Any]]
    traces: dict[str, DraftTrace]
    counts: BufferCounts
    status: MemberStatus


@pytest.fixture(scope="module")
def served(server: Server) -> Served:
    """The first requests of the server, drafted for by what it was started with."""
    answers = generate(server.port, "first")
    return Served(answers, server.traces(), server.buffer.counts(), server.status())


def is_there(user: UserEnvironment, module: str) -> bool:
    """Whether the user's Python finds a module."""
    return user.run("python", "-c", f"import {module}").returncode == 0


def test_paceline_is_the_installed_one_and_no_package_of_sglang_changed(installed: Installed) -> None:
    assert "paceline" not in installed.before
    assert {name: installed.after.get(name) for name in installed.before} == installed.before
    found = installed.user.run("python", "-c", "import paceline; print(paceline.__file__)").stdout
    assert found.strip() == str(installed.user.site / "paceline/__init__.py")


def test_nothing_of_a_learner_came_along(installed: Installed) -> None:
    assert is_there(installed.user, "paceline.serving.plugin")
    assert [name for name in LEARNERS_OWN if is_there(installed.user, name)] == []


def test_the_users_own_command_captures_what_it_answers(served: Served) -> None:
    assert len(served.answers) == len(PROMPTS)
    assert served.traces.keys() == served.answers.keys()
    for rid, trace in served.traces.items():
        answer = served.answers[rid]
        assert len(answer["output_ids"]) == TOKENS
        assert trace.tokens[trace.context_len :].tolist() == answer["output_ids"], rid
        assert len(trace.rounds) == answer["meta_info"]["spec_verify_ct"], rid
        assert int(trace.rounds.accepted.sum()) == answer["meta_info"]["spec_num_correct_drafts"], rid
        assert len(trace.features) >= len(trace.tokens) - 1, rid


def test_its_heartbeat_says_that_all_is_on_and_nothing_was_lost(served: Served) -> None:
    status = served.status
    assert (status.capture, status.capture_reason) == ("on", "")
    assert (status.swap, status.swap_reason) == ("on", "")
    assert (status.account.captured, status.account.dropped) == (len(PROMPTS), {})
    assert (served.counts.delivered, served.counts.dead_lettered) == (len(PROMPTS), 0)


def test_a_draft_that_the_user_promotes_serves_and_changes_no_answer(
    server: Server, served: Served, models: tuple[Path, Path], tmp_path: Path
) -> None:
    other = ensure_random_draft(models[0], tmp_path / "other", seed=1)
    for name, folder in (("initial", models[1]), ("other", other)):
        number = server.board.next_number()
        version = version_in(folder, number, target_version="0")
        server.board.register(version, "test", name)
    done = server.user.run("paceline", "promote", str(number), settings=server.settings)
    assert (done.returncode, done.stderr) == (0, "")
    until(lambda: server.status().draft_version == number, "the swap")
    again = generate(server.port, "again")
    before = [reply["output_ids"] for reply in served.answers.values()]
    assert [reply["output_ids"] for reply in again.values()] == before
    traces = server.traces()
    assert {traces[rid].draft_version for rid in again} == {number}
    assert {traces[rid].draft_version for rid in served.answers} == {0}


def test_sglangs_other_command_captures_too(server: Server, tmp_path: Path) -> None:
    """SGLang 0.5.21 and later recommend `sglang serve`."""
    port = free_port()
    redis_port = free_port()
    settings = server.settings | {"PACELINE_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0"}
    with (
        redis_service(tmp_path / "redis", redis_port),
        connect(settings["PACELINE_REDIS_URL"]) as client,
        sglang_server(server.user, ("sglang", "serve"), server.flags, settings, port, tmp_path / "sglang.log"),
    ):
        answers = generate(port, "other")
        buffer = RedisTraceBuffer(client, BufferConfig())
        until(lambda: buffer.counts().delivered == len(PROMPTS), "the traces")
        committed = {e.trace.request_id: e.trace.tokens[e.trace.context_len :].tolist() for e in buffer.replay(100)}
    assert committed == {rid: answer["output_ids"] for rid, answer in answers.items()}


def test_the_doctor_finds_nothing_wrong_and_asks_for_no_learner(server: Server) -> None:
    done = server.user.run("paceline", "doctor", "--json", "--", *server.flags, settings=server.settings)
    found = {one["topic"]: one["level"] for one in map(json.loads, done.stdout.splitlines())}
    server_side = {"SGLang", "flags", "capture", "swap", "answers", "replay", "pacing", "traffic"}
    board_side = {"Redis", "weights", "TLS", "token", "memory", "servers", "clocks", "beat", "MLflow"}
    assert set(found) == server_side | board_side
    assert set(found.values()) <= {"ok", "note"}, done.stdout
    assert done.returncode == 0
    assert [name for name in (*LEARNERS_OWN, "paceline[") if name in done.stdout + done.stderr] == []


def test_the_doctor_says_so_when_an_allow_list_keeps_the_plugin_out(server: Server) -> None:
    settings = server.settings | {"SGLANG_PLUGINS": "paceline_cpu_host"}
    done = server.user.run("paceline", "doctor", "--", *server.flags, settings=settings)
    assert done.returncode == 1
    assert "wrong    capture   off, and swaps with it: SGLang loads the plugins ['paceline_cpu_host']" in done.stdout


@pytest.mark.parametrize("command", ["versions", "alarms", "settings", "audit"])
def test_what_an_operator_asks_is_answered_there(server: Server, command: str) -> None:
    done = server.user.run("paceline", command, settings=server.settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_log_says_that_capture_is_on_and_names_no_fault_of_paceline(server: Server) -> None:
    """SGLang may log what it lacks on this machine; a traceback through paceline names a file of the package."""
    told = [line for line in server.log.read_text(encoding="utf-8").splitlines() if "paceline" in line]
    assert [line for line in told if "] paceline: " not in line] == []
    said = [line.partition("] paceline: ")[2] for line in told]
    assert [line.partition(" ")[0] for line in said] == ["capture"]
    assert said[0].startswith("capture is on, ")
