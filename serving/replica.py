"""Wires one replica: capture, courier process, swap and swapper of one SGLang scheduler process."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..buffer.redis_board import RedisVersionBoard
from ..buffer.redis_client import client_for
from .breaker import Breaker
from .config import ServingConfig
from .counts import CaptureCounts
from .courier import POLL_S
from .courier_process import CourierProcess
from .cut import TeacherWidth
from .sglang_capture import CaptureSettings, SglangCapture
from .sglang_swap import SglangSwap
from .swapper import Swapper


@dataclass(frozen=True, slots=True)
class Replica:
    """The parts the plugin hooks into SGLang, and what runs beside them."""

    capture: SglangCapture
    swap: SglangSwap
    courier: CourierProcess
    swapper: Swapper

    def start(self) -> None:
        """Start the courier's process and the swapper's thread; neither needs Redis to be reachable."""
        self.courier.start()
        self.swapper.start()


def build_replica(settings: ServingConfig, breaker: Breaker) -> Replica:
    """Build the replica of one scheduler process. Connects to nothing."""
    assert settings.redis_url is not None  # noqa: S101 - the plugin does nothing without it
    board = RedisVersionBoard(client_for(settings.redis_url), settings.buffer)
    swap = SglangSwap(settings.draft_version)
    counts, pause = CaptureCounts(), threading.Event()  # never set

    def wake_courier() -> None:
        courier.tell()
        pause.wait(POLL_S)

    swapper = Swapper(board, swap, settings.replica, wake_courier)
    courier = CourierProcess(
        settings, breaker, _status(breaker, counts, swapper, swap), is_canary=lambda: swapper.is_canary
    )
    teacher = TeacherWidth(settings.top_k, settings.greedy_top_k)
    chosen = CaptureSettings(teacher, settings.capture_features, settings.sample_rate)
    capture = SglangCapture(chosen, courier.outbox, counts, breaker, lambda: swap.draft_version)
    return Replica(capture, swap, courier, swapper)


def _status(
    breaker: Breaker, counts: CaptureCounts, swapper: Swapper, swap: SglangSwap
) -> Callable[[], dict[str, Any]]:
    """The scheduler process's share of the replica's reading; the courier has the rest."""

    def status() -> dict[str, Any]:
        return {
            **swapper.reading(),
            "is_canary": swapper.is_canary,
            "skipped": counts.reading()["skipped"],
            "capture_reason": breaker.reason,
            "swap": "off" if swap.fault else "on",
            "swap_reason": swap.fault,
        }

    return status
