"""Capture as it sits in a scheduler, with a real courier process and a real Redis, and what each of them costs."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from ...buffer.board.member_status import MemberStatus, TracesSaid
from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.config import BufferConfig
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...rig.readiness import free_port
from ...rig.services import redis_service
from ...serving.breaker import Breaker
from ...serving.capture.courier_process import CourierProcess
from ...serving.capture.prefill_rows import WindowSizes
from ...serving.capture.request_choice import RequestChoice
from ...serving.capture.scaled_rows import scaled_rows
from ...serving.capture.sglang_capture import CaptureSettings, SglangCapture
from ...serving.config import ServingConfig
from ...serving.wire.counts import CaptureCounts

REPLICA = "width"
TARGET = "target"
TARGET_VERSION = "0"
#: Payload that Redis keeps; its own limit is 2 GB.
BUFFER_BYTES = 1200 << 20
#: For all that was captured to be delivered or dropped.
SETTLE_S = 240.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds of processor time since a process started."""

    hand_over: float  # of this process, all threads but the caller's: those that write to the line
    courier: float
    redis: float

    def since(self, before: "ProcessorTime") -> "ProcessorTime":
        """What was spent after `before`."""
        pairs = ((getattr(self, name), getattr(before, name)) for name in self.__slots__)
        return ProcessorTime(*(after - earlier for after, earlier in pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What runs: capture as it sits in SGLang's scheduler, and the processes it leads to."""

    settings: ServingConfig
    capture: SglangCapture
    courier: CourierProcess
    breaker: Breaker
    client: Any
    redis_pid: int

    @property
    def buffer(self) -> RedisTraceBuffer:
        """The buffer, as a learner of this speculator opens it."""
        return RedisTraceBuffer(self.client, self.settings.buffer)

    def said(self) -> MemberStatus:
        """The courier's last heartbeat; nothing is known before the first."""
        board = RedisVersionBoard(self.client, self.settings.buffer)
        return board.heartbeats().get(f"replica:{REPLICA}", MemberStatus())

    def spent(self) -> ProcessorTime:
        """Read all clocks; to be called by the thread that acts the scheduler's."""
        own = psutil.Process()
        mine = threading.get_native_id()
        others = sum(each.user_time + each.system_time for each in own.threads() if each.id != mine)
        return ProcessorTime(others, _seconds(_courier()), _seconds(psutil.Process(self.redis_pid)))

    def courier_peak_bytes(self) -> int:
        """The most memory that the courier has held so far, as Linux counts it."""
        pid = _courier().pid
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
        raise SystemExit(f"/proc/{pid}/status: got no VmHWM, expected one")

    def hold(self, forward_bytes: int) -> None:
        """Wait until the line has room for another forward."""
        until_s = time.monotonic() + SETTLE_S
        while not self.courier.sender.has_room(forward_bytes):
            if time.monotonic() > until_s:
                raise SystemExit(f"line to the courier: got no room for {forward_bytes} bytes in {SETTLE_S:.0f} s")
            time.sleep(POLL_S / 10)

    def settle(self, traces: int) -> TracesSaid:
        """Wait until all that was captured, at least `traces` so far, is delivered or dropped; the counts by then.

        Lost requests are told with the scheduler's next status, so that the line alone does not say when all is told.
        """
        self.courier.outbox.flush()
        sender = self.courier.sender
        _wait(lambda: sender.has_room(self.settings.queue_bytes), "a receipt of all that was sent", self.said)
        received_at = time.time()

        def is_settled() -> bool:
            said = self.said()
            is_new = (said.at or 0.0) > received_at and said.account.captured >= traces
            return is_new and not said.open and not said.queued

        _wait(is_settled, "a heartbeat with no trace on its way", self.said)
        if self.breaker.faults:
            raise SystemExit(f"hook bodies: got {self.breaker.faults} faults, expected none")
        return self.said().account


@contextmanager
def deployed(folder: Path, **changes: Any) -> Iterator[Deployed]:
    """Everything up and the courier's first heartbeat read; `changes` are settings of the replica."""
    port = free_port()
    with redis_service(folder, port) as service, connect(f"redis://127.0.0.1:{port}/0", timeout_s=60.0) as client:
        buffer = BufferConfig(max_bytes=BUFFER_BYTES)
        given = {"replica": REPLICA, "target": TARGET, "target_version": TARGET_VERSION, **changes}
        settings = ServingConfig(redis_url=f"redis://127.0.0.1:{port}/0", buffer=buffer, **given)
        breaker = Breaker()
        courier = CourierProcess(settings, "bench", breaker=breaker, status=MemberStatus, is_canary_out=lambda: False)
        found = Deployed(
            settings=settings,
            capture=_capture(settings, courier, breaker),
            courier=courier,
            breaker=breaker,
            client=client,
            redis_pid=service.pid,
        )
        courier.start()
        try:
            _wait(lambda: found.said().at is not None, "the courier's first heartbeat", found.said)
            load_hooks_imports()
            yield found
        finally:
            courier.stop()


def load_hooks_imports() -> None:
    """Import what the first hook would: no measured one pays for it."""
    from sglang.srt.managers import auxiliary_output  # noqa: F401, PLC0415 - takes seconds


def _capture(settings: ServingConfig, courier: CourierProcess, breaker: Breaker) -> SglangCapture:
    """As the replica builds it."""
    sizes = WindowSizes(settings.trace_tokens, settings.context_tokens)
    kind = _OnDevice if settings.quantised_to else CaptureSettings
    captured = kind(settings.teacher, features=True, sizes=sizes)
    choice = RequestChoice(1.0, CaptureCounts(), lambda: 0, lambda: TARGET_VERSION)
    return SglangCapture(captured, courier.outbox, choice, breaker)


class _OnDevice(CaptureSettings):
    """Quantises where the rows are, as a GPU does."""

    def sent(self, rows: torch.Tensor) -> torch.Tensor:
        return scaled_rows(rows)


def _courier() -> psutil.Process:
    """The courier that this process has started."""
    found = [child for child in psutil.Process().children() if "paceline.serving.courier" in child.cmdline()]
    if len(found) != 1:
        raise SystemExit(f"courier processes of {os.getpid()}: got {len(found)}, expected 1")
    return found[0]


def _seconds(process: psutil.Process) -> float:
    """Those of its ended children included: Redis rewrites its file in one."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _wait(is_there: Callable[[], bool], what: str, counts: Callable[[], object]) -> None:
    until_s = time.monotonic() + SETTLE_S
    while not is_there():
        if time.monotonic() > until_s:
            raise SystemExit(f"{what}: it did not come in {SETTLE_S:.0f} s, with counts {counts()}")
        time.sleep(POLL_S)
