"""Connects the parts of one replica beside what every rank shares: capture, courier process and swapper.

Every rank builds shared_parts.py; entry ranks alone build and start this.
"""

from dataclasses import dataclass

from ..buffer.board.counters import MODEL_FREE
from ..buffer.board.redis_board import RedisVersionBoard
from ..buffer.board.version_store import store_of
from ..buffer.redis_client import client_for
from ..buffer.stream.trace import FeatureDtype
from . import sglang_ranks
from .breaker import Breaker
from .capture.courier_process import CourierProcess
from .capture.engine_rounds import EngineRounds
from .capture.prefill_rows import WindowSizes
from .capture.request_choice import RequestChoice
from .capture.sglang_capture import CaptureSettings, SglangCapture
from .config import ServingConfig
from .scheduler_share import SchedulerShare
from .server_identity import ServerIdentity
from .shared_parts import SharedParts
from .swap.staggered_rollout import StaggeredRollout
from .swap.swap_client import SwapClient
from .swap.swap_follower import SwapFollower
from .swap.swap_record import SwapRecord
from .swap.swapper import CanaryTurns, Swapper
from .wire.counts import CaptureCounts


@dataclass(frozen=True, slots=True)
class Replica:
    """What the entry rank has: capture, which the plugin hooks into SGLang, and what runs beside it."""

    capture: SglangCapture
    courier: CourierProcess
    swapper: Swapper | SwapFollower | None  # None where no draft is there to swap

    def start(self) -> None:
        """Start the courier's process and, of a draft, the swapper's thread; neither needs Redis to be reachable."""
        self.courier.start()
        if self.swapper is not None:
            self.swapper.start()


def build_replica(settings: ServingConfig, breaker: Breaker, shared: SharedParts, identity: ServerIdentity) -> Replica:
    """Build the replica around what its entry rank shares, each part from parts that are there already.

    Makes a folder, and connects to nothing.
    """
    assert settings.redis_url is not None  # noqa: S101 - the plugin does nothing without it
    swap = shared.swap
    updates = shared.target.updates
    canary_turn_s = settings.canary_turn_s or 0.0

    asks_for_swaps = sglang_ranks.is_asked_for_all()
    swaps = SwapRecord()
    counts = CaptureCounts()
    choice = RequestChoice(
        settings.sample_rate,
        counts,
        lambda: swap.draft_version,
        lambda: updates.judging,
        takes_adapters=settings.capture_features,
    )
    share = SchedulerShare(
        shared=shared,
        identity=identity,
        breaker=breaker,
        counts=counts,
        choice=choice,
        rounds=EngineRounds(choice.is_captured),
        swaps=swaps,
        canary_turn_s=canary_turn_s,
        asks_for_swaps=asks_for_swaps,
    )
    courier = CourierProcess(
        settings, identity.boot, breaker=breaker, status=share.said, is_canary_out=lambda: swaps.is_canary_out
    )

    sizes = WindowSizes(settings.trace_tokens, settings.context_tokens)
    is_int8 = settings.quantised_to is FeatureDtype.INT8
    captured = CaptureSettings(settings.teacher, settings.capture_features, sizes, is_int8)
    capture = SglangCapture(captured, courier.outbox, choice, breaker)
    shared.catch_up.on_lost = capture.lose_batch

    if swap.draft_version == MODEL_FREE:
        return Replica(capture, courier, None)
    if not asks_for_swaps:
        return Replica(capture, courier, SwapFollower(swap, swaps))
    board = RedisVersionBoard(client_for(settings.redis_url, settings.redis_ca), settings.buffer)
    swapper = Swapper(
        board,
        SwapClient(swap),
        replica=settings.replica,
        before_canary=courier.tell,
        record=swaps,
        turns=CanaryTurns(canary_turn_s),
        rollout=StaggeredRollout(board, settings.replica, settings.stagger_s),
        named=lambda: courier.replica,
        store=store_of(settings.buffer),
    )
    return Replica(capture, courier, swapper)
