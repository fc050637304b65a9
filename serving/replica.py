"""Wires one replica: tap, assembler, courier, capture, swap and swapper of one SGLang scheduler process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..buffer.redis_board import RedisVersionBoard
from ..buffer.redis_client import client_for
from ..buffer.redis_stream import RedisTraceBuffer
from .assembler import WindowAssembler
from .breaker import Breaker
from .config import ServingConfig
from .counts import CaptureCounts
from .courier import Courier
from .sglang_capture import CaptureSettings, SglangCapture
from .sglang_swap import SglangSwap
from .swapper import Swapper
from .tap import Tap
from .window import trace_maker


@dataclass(frozen=True, slots=True)
class Replica:
    """The parts the plugin hooks into SGLang, and the threads behind them."""

    capture: SglangCapture
    swap: SglangSwap
    courier: Courier
    swapper: Swapper

    def start(self) -> None:
        """Start the courier's and the swapper's threads; neither needs Redis to be reachable."""
        self.courier.start()
        self.swapper.start()


def build_replica(settings: ServingConfig, breaker: Breaker) -> Replica:
    """Build the replica of one scheduler process. Connects to nothing."""
    assert settings.redis_url is not None  # noqa: S101 - the plugin does nothing without it
    client = client_for(settings.redis_url)
    board = RedisVersionBoard(client, settings.buffer)
    swap = SglangSwap(settings.draft_version)
    swapper = Swapper(board, swap, settings.replica)
    tap, counts = Tap(settings.tap_bytes), CaptureCounts()
    maker = trace_maker(settings.replica, settings.target, settings.target_version)
    assembler = WindowAssembler(maker, counts, settings.window_tokens, settings.context_tokens)
    courier = Courier(
        tap,
        assembler,
        counts,
        breaker,
        RedisTraceBuffer(client, settings.buffer),
        board,
        f"replica:{settings.replica}",
        settings.backlog_bytes,
        _swap_reading(swapper, swap),
    )
    capture = SglangCapture(_capture_settings(settings), tap, counts, breaker, lambda: swap.draft_version)
    return Replica(capture, swap, courier, swapper)


def _swap_reading(swapper: Swapper, swap: SglangSwap) -> Callable[[], Mapping[str, object]]:
    return lambda: {**swapper.reading(), "swap": "off" if swap.fault else "on", "swap_reason": swap.fault}


def _capture_settings(settings: ServingConfig) -> CaptureSettings:
    return CaptureSettings(
        top_k=settings.top_k,
        features=settings.capture_features,
        sample_rate=settings.sample_rate,
    )
