"""Connects the parts of one replica: target, capture, courier process, swaps and pacing of one scheduler process.

Every tensor-parallel rank builds target, swaps and pacing; the entry rank alone builds and starts the rest.
"""

import threading
import time
from dataclasses import dataclass

import msgspec

from ..buffer.board.counters import Counters, SchedulerCounters
from ..buffer.board.member_status import MemberStatus
from ..buffer.board.redis_board import RedisVersionBoard
from ..buffer.redis_client import client_for
from .breaker import Breaker
from .capture.courier_process import CourierProcess
from .capture.engine_rounds import EngineRounds
from .capture.prefill_rows import WindowSizes
from .capture.request_choice import RequestChoice
from .capture.sglang_capture import CaptureSettings, SglangCapture
from .clock.shared_meter import SharedMeter
from .clock.step_clock import StepClock
from .config import ServingConfig
from .pacing.sglang_catch_up import SglangCatchUp
from .pacing.sglang_pacing import SglangPacing
from .server_identity import ServerIdentity
from .swap.sglang_swap import RankSwap
from .swap.staggered_rollout import StaggeredRollout
from .swap.swap_client import SwapClient
from .swap.swapper import CanaryTurns, Swapper
from .target import sglang_target
from .target.sglang_guard import SglangGuard
from .target.sglang_target import SglangTarget
from .target.sglang_tokens import SglangTokens
from .target.target_updates import TargetUpdates
from .wire.counts import CaptureCounts
from .wire.messages import POLL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """What every rank hooks into SGLang, and must hook alike: with other draft steps they would wait for ever."""

    target: SglangTarget
    swap: RankSwap
    pacing: SglangPacing
    clock: StepClock
    catch_up: SglangCatchUp
    tokens: SglangTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What the entry rank has beside them: capture, which the plugin hooks into SGLang, and what runs beside it."""

    capture: SglangCapture
    shared: SharedParts
    courier: CourierProcess
    swapper: Swapper
    rounds: EngineRounds
    identity: ServerIdentity

    def start(self) -> None:
        """Start the courier's process and the swapper's thread; neither needs Redis to be reachable."""
        self.courier.start()
        self.swapper.start()


def build_shared(settings: ServingConfig) -> SharedParts:
    """Build what every rank has. Uses no disk, process or network, so that it cannot fail on one rank alone."""
    clock = StepClock()
    pacing = SglangPacing(settings.pacing, settings.pacing_costs, meter=SharedMeter(clock))

    def draft_changed(took_s: float) -> None:
        clock.spent("swap", took_s)
        pacing.draft_changed()

    swap = RankSwap(settings.draft_version, settings.cache_dir, draft_changed)
    catch_up = SglangCatchUp(settings.catch_up_bytes, clock.meter.discount, clock.meter.interrupt)
    updates = TargetUpdates(sglang_target.first_version(settings.target_version))
    target = SglangTarget(SglangGuard(lambda: not swap.fault), updates)
    return SharedParts(target=target, swap=swap, pacing=pacing, clock=clock, catch_up=catch_up, tokens=SglangTokens())


def build_replica(settings: ServingConfig, breaker: Breaker, shared: SharedParts, identity: ServerIdentity) -> Replica:
    """Build the replica around what its entry rank shares. Makes a folder, and connects to nothing."""
    assert settings.redis_url is not None  # noqa: S101 - the plugin does nothing without it
    board = RedisVersionBoard(client_for(settings.redis_url, settings.redis_ca), settings.buffer)
    swap = shared.swap
    updates = shared.target.updates
    # never set
    counts = CaptureCounts()
    pause = threading.Event()

    def wake_courier() -> None:
        courier.report()
        pause.wait(POLL_S)

    rollout = StaggeredRollout(board, settings.replica, settings.stagger_s)
    turns = CanaryTurns(settings.canary_turn_s or 0.0)
    swapper = Swapper(
        board,
        SwapClient(swap),
        replica=settings.replica,
        before_canary=wake_courier,
        turns=turns,
        rollout=rollout,
        named=lambda: courier.replica,
    )
    courier = CourierProcess(
        settings,
        identity.boot,
        breaker=breaker,
        status=lambda: _status(replica, settings, breaker, counts),
        is_canary_out=lambda: swapper.is_canary_out,
    )
    sizes = WindowSizes(settings.trace_tokens, settings.context_tokens)
    choice = RequestChoice(settings.sample_rate, counts, lambda: swap.draft_version, lambda: updates.judging)
    captured = CaptureSettings(settings.teacher, settings.capture_features, sizes)
    capture = SglangCapture(captured, courier.outbox, choice, breaker)
    shared.catch_up.on_lost = capture.lose_batch
    rounds = EngineRounds(choice.is_captured)
    replica = Replica(
        capture=capture, shared=shared, courier=courier, swapper=swapper, rounds=rounds, identity=identity
    )
    return replica


def _status(replica: Replica, settings: ServingConfig, breaker: Breaker, counts: CaptureCounts) -> MemberStatus:
    """The scheduler process's share of the replica's status; the courier has the rest."""
    shared = replica.shared
    swap = shared.swap
    published, loaded = swap.effect.digests
    pacing = shared.pacing.said()
    pacing.catch_up = shared.catch_up.said()
    said = MemberStatus(
        canary_window_s=settings.canary_turn_s or 0.0,
        skipped=counts.skipped_told(),
        capture_reason=breaker.reason,
        swap="off" if swap.fault else "on",
        swap_reason=swap.fault or swap.waits_for,
        published_sha256=published,
        loaded_sha256=loaded,
        target=shared.target.updates.said(),
        engine_rounds=replica.rounds.look(swap.running()),
        captured_rounds=replica.capture.rounds,
        pacing=pacing,
        server=replica.identity.said(),
        clock_reason=shared.clock.fault,
        penalties_reason=shared.tokens.fault,
        counters=_counters(replica),
    )
    replica.swapper.fill(said)
    return said


def _counters(replica: Replica) -> Counters:
    """Those of the scheduler process; the courier adds its own."""
    shared = replica.shared
    swapper = replica.swapper
    scheduler = _with_swaps(shared.clock.counters(), swapper)  # before `at`, which is no earlier than what is counted
    return Counters(
        at=time.time(),
        boot=replica.identity.boot,
        started_at=replica.identity.started_at,
        draft=shared.swap.draft_version,
        target_version=shared.target.updates.version,
        scheduler=scheduler,
    )


def _with_swaps(counted: SchedulerCounters | None, swapper: Swapper) -> SchedulerCounters | None:
    if counted is None:
        return None
    return msgspec.structs.replace(counted, swaps=swapper.done, swaps_refused=swapper.refused)
