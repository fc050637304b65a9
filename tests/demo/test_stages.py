"""Traffic and the wait after it: both end when all is settled, and with an error when a service dies."""

import asyncio
import io
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paceline.buffer.board.member_status import LifeSaid, MemberStatus, SwapSaid, TracesSaid
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import PacelineError
from paceline.demo.stages import Running, measured, serve_traffic, settle
from paceline.rig.prompts import Prompt
from paceline.rig.reader import SpeculatorReader
from paceline.rig.services import Service
from rich.console import Console
from said import said
from twins.memory_board import MemoryVersionBoard
from twins.memory_stream import MemoryTraceBuffer

ROUND = 4


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    code = "import signal; print('up and then gone', flush=True); signal.pause()"
    ready = lambda it: it.log_contains("up")  # noqa: E731
    command = [sys.executable, "-c", code]
    with Service("probe", command, log=tmp_path / "log", is_ready=ready, start_limit_s=60.0) as started:
        yield started


@pytest.fixture
def board() -> MemoryVersionBoard:
    return MemoryVersionBoard()


@pytest.fixture
def running(service: Service, board: MemoryVersionBoard) -> Running:
    buffer = MemoryTraceBuffer(BufferConfig(speculator="test"))
    return Running([service], SpeculatorReader(buffer, board, "r0", "l0"), buffer)


def kill(service: Service) -> None:
    """Kill and wait, leaving the reaping to the service."""
    os.kill(service.pid, 9)
    os.waitid(os.P_PID, service.pid, os.WEXITED | os.WNOWAIT)


def script(*steps: Callable[[], object]) -> Callable[[float], None]:
    """A pause in which the next thing happens; one pause too many is an error."""
    coming = iter(steps)
    return lambda _seconds: next(coming)()


def test_settling_waits_for_a_new_heartbeat_for_delivery_and_for_the_learning_round(running: Running, board) -> None:
    def says(member: str, **reading: object) -> Callable[[], None]:
        return lambda: board.beat(member, said(reading), 60.0)

    later = time.time() + 60.0
    says("replica:r0", at=time.time() - 1.0, open=0, queued=0)()
    happened: list[str] = []
    settle(
        running,
        ROUND,
        60.0,
        script(
            says("replica:r0", at=later, open=0, queued=0),  # of a turn that may have begun before
            says("replica:r0", at=later + 1.0, open=1, queued=0),
            says("replica:r0", at=later + 2.0, open=0, queued=2),
            says("learner:l0", kind="learning"),
            says("replica:r0", at=later + 3.0, open=0, queued=0),
            lambda: (says("learner:l0", kind="published")(), happened.append("all")),
        ),
    )
    assert happened == ["all"]


def test_settling_gives_up_when_its_time_is_over(running: Running) -> None:
    settle(running, ROUND, 0.0, script())


def test_settling_ends_with_the_log_of_a_service_that_died(running: Running, service: Service) -> None:
    with pytest.raises(PacelineError, match=r"(?s)probe has ended, code -9, and was still needed; .*up and then gone"):
        settle(running, ROUND, 60.0, script(lambda: kill(service)))


def test_a_dead_service_ends_the_traffic_at_once(running: Running, service: Service) -> None:
    kill(service)
    prompts = [Prompt(f"r{number}", "py", (1, 2)) for number in range(480)]

    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        traffic = serve_traffic(running, Console(file=io.StringIO()), url, prompts, concurrency=4, max_tokens=8)
        with pytest.raises(PacelineError, match="probe has ended"):
            asyncio.run(traffic)


def test_a_run_is_measured_from_the_status_of_its_members(running: Running, board, make_trace) -> None:
    traces = [make_trace(seed, trace_id=str(seed), draft_version=0) for seed in range(3)]
    running.buffer.append(traces)
    swaps = [SwapSaid(number=n, stage_ms=2.0, commit_ms=1.0, running=n, at=5.0) for n in (0, 1, 2)]
    board.beat("replica:r0", MemberStatus(swaps=swaps, traces=TracesSaid(captured=3, delivered=3, dropped={})), 60.0)
    board.beat("learner:l0", MemberStatus(life=LifeSaid(identity_equal=9, identity_compared=10)), 60.0)
    run = measured(running, [], 16, mlflow_uri="sqlite:///x", seconds={"traffic": 1.0})
    assert (run.replay, run.swaps, run.stalls_ms, run.max_tokens) == ((9, 10), 2, [], 16)
    assert run.quiet_ms == []  # nobody streamed, so no wait is known
    assert (run.traces.pending, run.traces.is_balanced, run.lossless.checked) == (3, True, 0)
