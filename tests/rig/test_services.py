"""Services are real processes: up when entered, and gone with everything they started when left."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest
from paceline.buffer.errors import PacelineError
from paceline.buffer.finding import Level
from paceline.buffer.redis_client import connect
from paceline.buffer.retention import redis_retention
from paceline.rig.readiness import free_port
from paceline.rig.services import Service, redis_service
from waiting import until

STARTS_A_CHILD = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print("child", child.pid, flush=True)
print("here I am", flush=True)
signal.pause()
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
DOCILE = "import signal; print('up', flush=True); signal.pause()"


def service(tmp_path: Path, code: str, **changes: object) -> Service:
    limits = {
        "start_limit_s": 60.0,
        "stop_limit_s": 1.0,
        "log": tmp_path / "log",
        "env": {"PACELINE_TEST_WORD": "hello"},
    }
    ready = {"is_ready": lambda it: it.log_contains("here I am")}
    return Service("probe", [sys.executable, "-c", code], **(limits | ready | changes))


def is_alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie that nobody reaps does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def child_of(running: Service) -> int:
    return int(running.log.read_text().partition("child ")[2].split()[0])


def test_redis_keeps_its_data_between_two_starts_and_is_gone_afterwards(tmp_path: Path) -> None:
    port = free_port()
    for found in (None, b"forwards"):
        with redis_service(tmp_path / "redis", port) as redis, connect(f"redis://127.0.0.1:{port}/0") as client:
            assert client.get("pace") == found
            client.set("pace", "forwards")
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            pid = redis.pid
        assert not is_alive(pid)
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass


@pytest.mark.parametrize(("is_durable", "level"), [(True, Level.WRONG), (False, Level.OK)])
def test_redis_writes_to_no_disk_where_it_is_told_so(tmp_path: Path, is_durable: bool, level: Level) -> None:
    port = free_port()
    with (
        redis_service(tmp_path, port, is_durable=is_durable),
        connect(f"redis://127.0.0.1:{port}/0", timeout_s=30.0) as client,
    ):
        assert redis_retention(client).level is level


@pytest.mark.parametrize("child", [DOCILE, STUBBORN], ids=["docile", "stubborn"])
def test_what_a_service_started_is_gone_with_it(tmp_path: Path, child: str) -> None:
    with service(tmp_path, STARTS_A_CHILD.format(child=child)) as running:
        leader = running.pid
        started = child_of(running)
        assert is_alive(leader)
        assert is_alive(started)
        assert running.is_running()
    assert not is_alive(leader)
    assert not is_alive(started)
    assert not running.is_running()


def test_a_service_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with service(tmp_path, STUBBORN.replace("'up'", "'here I am'"), stop_limit_s=0.2) as running:
        pid = running.pid
    assert not is_alive(pid)


LEADS_A_SESSION = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: print("asked to end", flush=True))
child = subprocess.Popen([sys.executable, "-c", {child!r}], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print("child", child.pid, flush=True)
print("here I am", flush=True)
while True:
    signal.pause()
"""


def test_a_leader_that_must_be_killed_takes_its_children_of_other_sessions_along(tmp_path: Path) -> None:
    with service(tmp_path, LEADS_A_SESSION.format(child=STUBBORN), stop_limit_s=0.2) as running:
        leader = running.pid
        started = child_of(running)
        assert os.getsid(started) == started
    assert not is_alive(leader)
    assert not is_alive(started)


def test_a_second_ctrl_c_kills_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    running = service(tmp_path, LEADS_A_SESSION.format(child=STUBBORN), stop_limit_s=60.0)
    running.start()
    leader = running.pid
    started = child_of(running)

    def press_when_asked() -> None:
        until(lambda: running.log_contains("asked to end"), "the child to be asked")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    presser = threading.Thread(target=press_when_asked)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        running.stop()
    presser.join()
    assert not is_alive(leader)
    until(lambda: not is_alive(started), "the end of what it had started")
    assert not running.is_running()


def test_an_ended_service_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    with service(tmp_path, DOCILE.replace("'up'", "'here I am'")) as running:
        running.ensure_running()
        os.kill(running.pid, 9)
        os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(PacelineError, match=r"(?s)probe has ended, code -9, and was still needed; .*here I am"):
            running.ensure_running()


def test_a_service_runs_in_a_session_of_its_own_with_its_environment(tmp_path: Path) -> None:
    say = "print(os.getsid(0), os.environ['PACELINE_TEST_WORD'], 'here I am', flush=True)"
    code = f"import os, signal; {say}; signal.pause()"
    with service(tmp_path, code) as running:
        assert running.log.read_text().split()[:2] == [str(running.pid), "hello"]


def test_a_service_that_dies_while_starting_shows_the_end_of_its_log(tmp_path: Path) -> None:
    code = "for line in range(40): print('line', line, flush=True)\nraise SystemExit('no model there')"
    with pytest.raises(
        PacelineError, match=r"(?s)probe ended while starting, code 1; .*line 39\nno model there"
    ) as caught:
        service(tmp_path, code).start()
    assert "line 20" not in str(caught.value)


def test_a_service_that_is_never_ready_is_stopped_and_named(tmp_path: Path) -> None:
    started = set[int]()
    never = lambda it: started.add(it.pid)  # noqa: E731 - nothing comes back, which is not ready
    slow = service(tmp_path, "import signal; signal.pause()", start_limit_s=0.5, is_ready=never)
    with pytest.raises(PacelineError, match="probe was not ready after"):
        slow.start()
    (pid,) = started
    assert not is_alive(pid)
    assert not slow.is_running()


def test_only_the_log_of_this_start_counts(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("here I am, said yesterday\n")
    with pytest.raises(PacelineError, match="ended while starting, code 0"):
        service(tmp_path, "pass").start()


def test_stopping_twice_or_before_starting_does_nothing_and_a_pid_needs_a_start(tmp_path: Path) -> None:
    never = service(tmp_path, "pass")
    never.stop()
    never.stop()
    with pytest.raises(PacelineError, match="got no process"):
        _ = never.pid


def test_a_killed_service_is_gone_at_once_and_may_be_started_again(tmp_path: Path) -> None:
    with service(tmp_path, STARTS_A_CHILD.format(child=STUBBORN)) as running:
        leader = running.pid
        child = child_of(running)
        running.kill()
        assert not is_alive(leader)
        assert not is_alive(child)
        running.start()
        assert running.is_running()
    with pytest.raises(PacelineError, match="got no process"):
        running.kill()
